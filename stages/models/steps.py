"""What the learner asks of a model, and mixins that give it to a plain `nn.Module`.

Three lines make a module trainable::

    class Net(ClassificationStep, PlainNet):
        def loss(self, logits, targets):
            return F.cross_entropy(logits, targets, label_smoothing=0.1)
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.contracts.outputs import ClassificationOutput, RegressionOutput, TrainOutput

if TYPE_CHECKING:
    from torch.nn import Module
else:
    Module = object


_KNOWN = "_known_parameters"


class Model(Protocol):
    """An `nn.Module` with Burn's `TrainStep` and `ValidStep`."""

    def train_step(self, batch: Any) -> TrainOutput[Any]:
        """Forward and backward on one batch, in training mode."""

    def valid_step(self, batch: Any) -> Any:
        """Forward on one batch, in evaluation mode and without gradients."""


def backward(model: "torch.nn.Module", loss: Tensor) -> Sequence[Tensor | None]:
    """The gradient of *loss* for each of ``model.parameters()``, in that order.

    None for a parameter that is frozen or that the loss does not depend on. Nothing is left in ``.grad``.
    """
    parameters = model.__dict__.get(_KNOWN) or tuple(model.parameters())
    if all(parameter.requires_grad for parameter in parameters):
        return torch.autograd.grad(loss, parameters, allow_unused=True)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = iter(torch.autograd.grad(loss, trained, allow_unused=True))
    return [next(gradients) if parameter.requires_grad else None for parameter in parameters]


@contextmanager
def known_parameters(model: "torch.nn.Module") -> Iterator[None]:
    """Inside, `backward` does not ask *model* for its parameters at each step: they stay the same ones."""
    model.__dict__[_KNOWN] = tuple(model.parameters())
    try:
        yield
    finally:
        del model.__dict__[_KNOWN]


class ClassificationStep(Module):
    """Steps for a module that turns inputs (B, …) into logits (B, classes)."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch: cross entropy, unless overridden."""
        return F.cross_entropy(logits, targets)

    def forward_classification(self, batch: Any) -> ClassificationOutput:
        """Loss, logits and targets of a batch that unpacks as inputs and targets."""
        inputs, targets = batch
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
    """Steps for a module that turns inputs (B, …) into predictions of the targets' shape."""

    def loss(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch: the squared error, unless overridden."""
        return F.mse_loss(predictions, targets)

    def forward_regression(self, batch: Any) -> RegressionOutput:
        """Loss, predictions and targets of a batch that unpacks as inputs and targets."""
        inputs, targets = batch
        predictions = self(inputs).reshape(targets.shape)
        return RegressionOutput(self.loss(predictions, targets), predictions, targets)

    def train_step(self, batch: Any) -> TrainOutput[RegressionOutput]:
        """Forward and backward on one batch."""
        item = self.forward_regression(batch)
        return TrainOutput(self, backward(self, item.loss), item)

    def valid_step(self, batch: Any) -> RegressionOutput:
        """Forward on one batch."""
        return self.forward_regression(batch)
