"""What the learner asks of a model, and mixins that give it to a plain `nn.Module`.

Three lines make a module trainable::

    class Net(ClassificationStep, PlainNet):
        def loss(self, logits, targets):
            return F.cross_entropy(logits, targets, label_smoothing=0.1)
"""

from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.outputs import ClassificationOutput, RegressionOutput, TrainOutput
from stages.contracts.user_code import place_of

if TYPE_CHECKING:
    from torch.nn import Module
else:
    Module = object


_cached: dict[int, tuple[Tensor, ...]] = {}


class Model(Protocol):
    """An `nn.Module` with Burn's `TrainStep` and `ValidStep`.

    A model may also have a method ``optimize(optimizer, gradients, learning_rate)``, which then makes the
    update, and ``training_state()`` with ``load_training_state(state)``, which add state to checkpoints.
    """

    def train_step(self, batch: Any) -> TrainOutput[Any]:
        """Run forward and backward on one batch, in training mode.

        Every ``.grad`` is None when the step begins. Return the gradients of `backward`, or call
        ``loss.backward()`` and return ``[p.grad for p in self.parameters()]``.
        """

    def valid_step(self, batch: Any) -> Any:
        """Forward on one batch, in evaluation mode and without gradients."""


def backward(model: "torch.nn.Module", loss: Tensor) -> list[Tensor | None]:
    """Return the gradient of *loss* for each of ``model.parameters()``, in that order.

    The gradient of a parameter is None if it is frozen or if the loss does not depend on it. ``.grad`` is
    cleared before, so that an earlier ``loss.backward()`` does not count, and after. To train on the sum of
    several losses, call this function once with their sum. Raises `BuilderError` for a loss that is not a
    scalar or has no gradient.
    """
    if not (isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1):
        raise _loss_error(model, loss)
    parameters = _cached.get(id(model)) or tuple(model.parameters())
    for parameter in parameters:
        parameter.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return gradients


def clear_gradients(model: "torch.nn.Module") -> None:
    """Set ``.grad`` of every parameter of *model* to None.

    The learner does so before each training step, as a textbook loop calls ``optimizer.zero_grad()``.
    """
    for parameter in _cached.get(id(model)) or model.parameters():
        parameter.grad = None


def _loss_error(model: "torch.nn.Module", loss: Any) -> BuilderError:
    method = getattr(type(model), "loss", None)
    place = place_of(method) or place_of(type(model))
    name = f"{type(model).__name__}{'.loss' if method else ''}{place}"
    if not isinstance(loss, Tensor):
        return BuilderError(
            f"{name}: the loss must be a tensor of one number; found the type {type(loss).__name__}"
        )
    if loss.numel() != 1:
        return BuilderError(
            f"{name}: the loss must be one number; found shape {tuple(loss.shape)}: reduce it, for example "
            "with loss.mean()"
        )
    return BuilderError(
        f"{name}: the loss has no gradient, so no parameter can be trained. It must depend on parameters "
        "that require one: compute it without detach(), item() or torch.no_grad(), and do not freeze all of "
        "the parameters"
    )


@contextmanager
def cache_parameters(model: "torch.nn.Module") -> Iterator[None]:
    """Look up the parameters of *model* once for the block, instead of at each step; then clear ``.grad``."""
    _cached[id(model)] = tuple(model.parameters())
    try:
        yield
    finally:
        clear_gradients(model)
        del _cached[id(model)]


class ClassificationStep(Module):
    """Steps for a module that turns inputs (B, …) into logits (B, classes)."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of the batch: cross entropy, unless overridden.

        Raises `BuilderError` for one logit, (B, 1), of which cross entropy is always 0.
        """
        if logits.ndim > 1 and logits.shape[1] == 1:
            raise BuilderError(
                f"cross entropy takes a logit per class, and the model gives one, {tuple(logits.shape)}: "
                "give the model two outputs, or override loss with F.binary_cross_entropy_with_logits"
            )
        return F.cross_entropy(logits, targets)

    def forward_classification(self, batch: Any) -> ClassificationOutput:
        """Return loss, logits and targets of a batch that unpacks as inputs and targets.

        Raises `BuilderError` for another batch.
        """
        inputs, targets = _unpack_pair(batch, self, "forward_classification")
        logits = self(inputs)
        return ClassificationOutput(self.loss(logits, targets), logits, targets)

    def train_step(self, batch: Any) -> TrainOutput[ClassificationOutput]:
        """Forward and backward on one batch."""
        item = self.forward_classification(batch)
        return TrainOutput(self, backward(self, item.loss), item)

    def valid_step(self, batch: Any) -> ClassificationOutput:
        """Forward on one batch."""
        return self.forward_classification(batch)


class RegressionStep(Module):
    """Steps for a module that turns inputs (B, …) into predictions of the targets' shape.

    Predictions (B, 1) also fit targets (B,), and the reverse.
    """

    def loss(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch: the squared error, unless overridden."""
        return F.mse_loss(predictions, targets)

    def forward_regression(self, batch: Any) -> RegressionOutput:
        """Return loss, predictions and targets of a batch that unpacks as inputs and targets.

        Raises `BuilderError` for another batch, and if predictions and targets differ in shape.
        """
        inputs, targets = _unpack_pair(batch, self, "forward_regression")
        predictions = _reshape_like(targets, self(inputs))
        return RegressionOutput(self.loss(predictions, targets), predictions, targets)

    def train_step(self, batch: Any) -> TrainOutput[RegressionOutput]:
        """Forward and backward on one batch."""
        item = self.forward_regression(batch)
        return TrainOutput(self, backward(self, item.loss), item)

    def valid_step(self, batch: Any) -> RegressionOutput:
        """Forward on one batch."""
        return self.forward_regression(batch)


def _unpack_pair(batch: Any, model: Any, method: str) -> tuple[Any, Any]:
    """Return the inputs and the targets of *batch*; *method* is the one to override for another batch."""
    if not isinstance(batch, Mapping | Tensor | str):  # these unpack too, as keys, rows and letters
        with suppress(TypeError, ValueError):
            inputs, targets = batch
            return inputs, targets
    name = type(batch).__name__
    if isinstance(batch, Mapping):
        found = f"a {name} with the keys {', '.join(map(repr, batch))}"
    elif isinstance(batch, Tensor):
        found = f"a tensor of shape {tuple(batch.shape)}"
    else:
        found = f"a {name} of {len(batch)} elements" if isinstance(batch, Sized) else f"the type {name}"
    raise BuilderError(
        f"{type(model).__name__}.{method}{place_of(type(model))} takes a batch of (inputs, targets); found "
        f"{found}: return a pair from the dataset or the batcher, or override {method}"
    )


def _reshape_like(targets: Tensor, predictions: Tensor) -> Tensor:
    """Return *predictions* in the shape of *targets*, which may lack, or add, a last dimension of 1."""
    if predictions.shape == targets.shape:
        return predictions
    batch = (len(targets),)
    if {tuple(predictions.shape), tuple(targets.shape)} == {batch, (*batch, 1)}:
        return predictions.reshape(targets.shape)
    raise BuilderError(
        f"the model gives predictions {tuple(predictions.shape)} for targets {tuple(targets.shape)}: reshape "
        "one of them, so that both have the same shape"
    )
