"""The protocol of a model, and mixins that add its steps to an `nn.Module`.

Three lines make a module trainable::

    class Net(ClassificationStep, PlainNet):
        def loss(self, logits, targets):
            return F.cross_entropy(logits, targets, label_smoothing=0.1)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.outputs import (
    ClassificationOutput,
    Item,
    RegressionOutput,
    TrainOutput,
    Weight,
    count_targets,
    is_counted,
)
from stages.contracts.user_code import place_of
from stages.models.logging_step import LoggingStep

if TYPE_CHECKING:
    from torch.nn import Module
else:
    Module = object


RunBackward = Callable[[Tensor, Sequence[Tensor], "Weight | None"], None]
"""Sets ``.grad`` of the parameters to the gradients of a loss, of which it receives the weight too."""

GRADIENT = attrgetter("grad")
_prepared: dict[int, tuple[tuple[Tensor, ...], RunBackward | None]] = {}
"""The parameters of each model in training by its id, and what computes their gradients."""


class Model(Protocol):
    """An `nn.Module` with Burn's `TrainStep` and `ValidStep`.

    A model may also have a method ``optimize(optimizer, gradients, learning_rate)``, which then makes the
    update, and ``training_state()`` with ``load_training_state(state)``, which add state to checkpoints.
    """

    def train_step(self, batch: Any) -> TrainOutput[Any]:
        """Compute loss and gradients of one batch, in training mode.

        Every ``.grad`` is None when the step begins. Return the gradients of `backward`, or call
        ``loss.backward()`` and return ``[p.grad for p in self.parameters()]``.
        """

    def valid_step(self, batch: Any) -> Any:
        """Compute the output of one batch, in evaluation mode and without gradients."""


def backward(model: "torch.nn.Module", loss: Tensor, weight: "Weight | None" = None) -> list[Tensor | None]:
    """Return the gradient of *loss* for each of ``model.parameters()``, in that order.

    The gradient of a parameter is None if it is frozen or if the loss does not depend on it. ``.grad`` is
    cleared before, so that an earlier ``loss.backward()`` does not count, and after. To train on the sum of
    several losses, call this function once with their sum.

    Args:
        model: The model to train.
        loss: A tensor of one number.
        weight: The weight of the output, if it has one: see `stages.contracts.outputs`. Default: the number
            of samples. It does not change the gradients that are returned; ranks that exchange gradients in
            the backward pass need it.

    Raises:
        BuilderError: If the loss is not a tensor with one element, or has no gradient.
    """
    if not (isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1):
        raise _loss_error(model, loss)
    parameters, run_backward = _prepared.get(id(model)) or (tuple(model.parameters()), None)
    for parameter in parameters:
        parameter.grad = None
    if run_backward is None:
        loss.backward()  # type: ignore[no-untyped-call]
    else:
        run_backward(loss, parameters, weight)
    gradients = [*map(GRADIENT, parameters)]
    for parameter in parameters:
        parameter.grad = None
    return gradients


def clear_gradients(model: "torch.nn.Module") -> None:
    """Set ``.grad`` of every parameter of *model* to None.

    The learner calls it before each training step, like ``optimizer.zero_grad()`` in a textbook loop.
    """
    parameters, _ = _prepared.get(id(model)) or (model.parameters(), None)
    for parameter in parameters:
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
            f"{name}: the loss must be one number; found shape {tuple(loss.shape)}. Reduce it, for example "
            "with loss.mean()"
        )
    return BuilderError(
        f"{name}: the loss has no gradient, so no parameter can be trained. It must depend on parameters "
        "that require one. Compute it without detach(), item() or torch.no_grad(), and do not freeze all of "
        "the parameters"
    )


@contextmanager
def prepare_backward(
    model: "torch.nn.Module", run_backward: RunBackward | None = None
) -> Iterator[tuple[Tensor, ...]]:
    """Have `backward` compute gradients of *model* with *run_backward* in the block, then clear ``.grad``.

    None means ``loss.backward()``. The parameters of *model*, which the block receives, are looked up once.
    """
    parameters, before = tuple(model.parameters()), _prepared.get(id(model))
    _prepared[id(model)] = parameters, run_backward
    try:
        yield parameters
    finally:
        clear_gradients(model)
        del _prepared[id(model)]
        if before is not None:  # a hook has trained the model with a learner of its own
            _prepared[id(model)] = before


class ClassificationStep(LoggingStep):
    """Training and validation steps for a module with logits (B, classes) for inputs (B, …)."""

    _label_smoothing = 0.0
    _has_class_weights = False
    _has_zero_weights = False
    """True if a class has the weight 0, so that the divisor of a share may be 0; its loss is then 0."""
    has_ignored_targets = True
    """False if no target of a run is -100, so that its targets need not be counted; `fit` sets it."""

    def configure_loss(
        self, *, class_weights: Sequence[float] | None = None, label_smoothing: float = 0.0
    ) -> None:
        """Set the options of the default `loss`, in training and in validation.

        Args:
            class_weights: A weight for each class. Default: 1 for each. They are not part of checkpoints.
            label_smoothing: The share of each target that is spread evenly over all classes.

        Raises:
            BuilderError: If the class has a loss of its own.
        """
        if type(self).loss is not ClassificationStep.loss:
            raise BuilderError(
                f"{type(self).__name__}{place_of(type(self))} overrides loss, so class_weights and "
                "label_smoothing have no effect. Use them in that method, or remove it"
            )
        self._label_smoothing = label_smoothing
        self._has_class_weights = class_weights is not None
        self._has_zero_weights = class_weights is not None and 0 in class_weights
        dtypes = (parameter.dtype for parameter in self.parameters())
        dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=dtype)
        self.register_buffer("_class_weights", weights, persistent=False)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of the batch. Default: cross entropy; override it for another loss.

        The default is that of `torch.nn.functional.cross_entropy` with the weights w and the label smoothing
        ε of `configure_loss`: the sum over samples of ``-(1 - ε) w[y] log p[y] - ε / C Σ w[c] log p[c]``,
        divided by the sum of ``w[y]``, for C classes, the target y and the predicted probabilities p. A
        target of -100 is left out of both sums.

        Raises:
            BuilderError: If there is one logit, (B, 1), because its cross entropy is always 0.
        """
        if logits.ndim > 1 and logits.shape[1] == 1:
            raise BuilderError(
                f"cross entropy takes a logit per class, and the model returns one, {tuple(logits.shape)}. "
                "Give the model two outputs, or override loss with F.binary_cross_entropy_with_logits"
            )
        weights: Any = self._class_weights if self._has_class_weights else None
        if weights is not None and not torch.is_autocast_enabled(logits.device.type):
            weights = weights.to(logits.dtype)  # autocast computes the loss in float32, with all their digits
        smoothing = self._label_smoothing
        if not self._has_zero_weights:
            return F.cross_entropy(logits, targets, weights, label_smoothing=smoothing)
        total = F.cross_entropy(logits, targets, weights, label_smoothing=smoothing, reduction="sum")
        divisor: Any = self.loss_weight(targets)
        return total / (len(targets) if divisor is None else divisor.clamp(min=torch.finfo(total.dtype).tiny))

    def loss_weight(self, targets: Tensor) -> "Weight | None":
        """Return the weight of an output with *targets*, the divisor of `loss`; None: the number of samples.

        Default: the number of targets that are not -100, or the sum of their class weights. Override it with
        a `loss` that is the mean over anything else. See `stages.contracts.outputs`.
        """
        if targets.is_floating_point():  # probabilities, or the targets of one logit
            return None
        if self._has_class_weights:
            weights: Any = self._class_weights
            total: Tensor = (weights[targets.long().clamp(min=0)] * is_counted(targets)).sum()
            return total
        if self.has_ignored_targets or targets.ndim > 1:
            return count_targets(targets)
        return None

    def forward_classification(self, batch: Any) -> ClassificationOutput:
        """Return loss, logits and targets of a batch (inputs, targets).

        Raises:
            BuilderError: If *batch* is not such a pair, or has no targets.
        """
        is_pair = isinstance(batch, tuple) and len(batch) == 2  # most batches
        inputs, targets = batch if is_pair else _unpack_pair(batch, self, "forward_classification")
        if targets is None:
            raise BuilderError(
                f"{type(self).__name__}.forward_classification{place_of(type(self))} needs targets, and the "
                "data has none. Use RegressionStep to predict the inputs, or override the method"
            )
        logits = self(inputs)
        return ClassificationOutput(self.loss(logits, targets), logits, targets, self.loss_weight(targets))

    def train_step(self, batch: Any) -> TrainOutput[ClassificationOutput]:
        """Return the output and the gradients of one batch."""
        return _train(self, self.forward_classification(batch))

    def valid_step(self, batch: Any) -> ClassificationOutput:
        """Return the output of one batch."""
        return self.forward_classification(batch)


class RegressionStep(LoggingStep):
    """Training and validation steps for a module whose predictions have the shape of the targets.

    Predictions (B, 1) also fit targets (B,), and the reverse.
    """

    def loss(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of the batch. Default: the squared error; override it for another loss."""
        return F.mse_loss(predictions, targets)

    def loss_weight(self, targets: Tensor) -> "Weight | None":
        """Return the weight of an output with *targets*, the divisor of `loss`; None: the number of samples.

        Default: the number of predicted numbers. Override it with a `loss` that is the mean over anything
        else. See `stages.contracts.outputs`.
        """
        numbers = targets.numel()
        return None if numbers == len(targets) else numbers

    def forward_regression(self, batch: Any) -> RegressionOutput:
        """Return loss, predictions and targets of a batch (inputs, targets).

        If there are no targets, the module is an autoencoder: the inputs are the targets.

        Raises:
            BuilderError: If *batch* is not such a pair, or if predictions and targets differ in shape.
        """
        is_pair = isinstance(batch, tuple) and len(batch) == 2
        inputs, targets = batch if is_pair else _unpack_pair(batch, self, "forward_regression")
        predictions = self(inputs)
        if targets is None:
            targets = inputs
            if predictions.numel() == inputs.numel():
                predictions = predictions.reshape(inputs.shape)
        predictions = _reshape_like(targets, predictions)
        loss = self.loss(predictions, targets)
        return RegressionOutput(loss, predictions, targets, self.loss_weight(targets))

    def train_step(self, batch: Any) -> TrainOutput[RegressionOutput]:
        """Return the output and the gradients of one batch."""
        return _train(self, self.forward_regression(batch))

    def valid_step(self, batch: Any) -> RegressionOutput:
        """Return the output of one batch."""
        return self.forward_regression(batch)


def _train(model: Module, item: Item) -> TrainOutput[Item]:
    """Return *item* with the gradients of its loss; a user's output may have no weight."""
    return TrainOutput(model, backward(model, item.loss, getattr(item, "weight", None)), item)


def _unpack_pair(batch: Any, model: Any, method: str) -> tuple[Any, Any]:
    """Return the inputs and targets of *batch*; *method* is the method to override for other batches."""
    if not isinstance(batch, Mapping | Tensor | str):  # these unpack too, into keys, rows and letters
        with suppress(TypeError, ValueError):
            inputs, targets = batch
            return inputs, targets
    name = type(batch).__name__
    if isinstance(batch, Mapping):
        description = f"a {name} with the keys {', '.join(map(repr, batch))}"
    elif isinstance(batch, Tensor):
        description = f"a tensor of shape {tuple(batch.shape)}"
    else:
        description = f"a {name} of {len(batch)} elements" if isinstance(batch, Sized) else f"the type {name}"
    raise BuilderError(
        f"{type(model).__name__}.{method}{place_of(type(model))} takes a batch of (inputs, targets); found "
        f"{description}. Return a pair from the dataset or the batcher, or override {method}"
    )


def _reshape_like(targets: Tensor, predictions: Tensor) -> Tensor:
    """Return *predictions* in the shape of *targets*, which may differ in a last dimension of 1."""
    if predictions.shape == targets.shape:
        return predictions
    batch = (len(targets),)
    if {tuple(predictions.shape), tuple(targets.shape)} == {batch, (*batch, 1)}:
        return predictions.reshape(targets.shape)
    raise BuilderError(
        f"the model returns predictions {tuple(predictions.shape)} for targets {tuple(targets.shape)}. "
        "Reshape one of them to the shape of the other"
    )
