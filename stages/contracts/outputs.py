"""The outputs of steps: the loss and the inputs of metrics, for a batch of *B* samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from stages.contracts.errors import BuilderError

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item", bound="Output")


class Output(Protocol):
    """The attributes that every output needs, also a user's own."""

    @property
    def loss(self) -> "Tensor":
        """The mean loss of the batch, a scalar."""

    @property
    def size(self) -> int:
        """The number of samples in the batch."""


def weight_of(item: Output) -> "int | Tensor":
    """Return the number of samples or tokens that the loss of *item* is the mean of.

    It is an integer on a CPU; on an accelerator it may be a tensor, which is not read. Raises `BuilderError`
    if it is not a whole number.
    """
    weight: Any = getattr(item, "weight", None)
    if weight is None:
        return item.size
    if hasattr(weight, "device") and weight.device.type != "cpu":
        return cast("Tensor", weight)
    number = float(weight)
    if not number.is_integer():
        raise BuilderError(
            f"the weight of a {type(item).__name__} must be the number of samples or tokens that its loss is "
            f"the mean of; found {number:g}. Set it to that number, or leave it out"
        )
    return int(number)


@dataclass(frozen=True)
class ClassificationOutput:
    """Classification with one class per sample or position. Burn's output of the same name."""

    loss: "Tensor"
    """The mean loss, a scalar."""
    output: "Tensor"
    """The logits, (B, C) or (B, C, …); of a binary model with one logit, (B,) or (B, 1)."""
    targets: "Tensor"
    """The class of each sample or position, (B,) or (B, …), integers; -100 is ignored.

    For a model with one logit: 0 or 1, integers or floats, (B,) or (B, 1).
    """
    weight: "int | Tensor | None" = None
    """The number of targets that the loss is the mean of; None: the number of samples.

    Set it if the loss is the mean over the tokens of padded sequences, so that the loss of an epoch is too.
    """

    @property
    def size(self) -> int:
        """The number of samples, B."""
        return self.targets.shape[0]


@dataclass(frozen=True)
class MultiLabelClassificationOutput:
    """Classification with any number of labels per sample. Burn's output of the same name."""

    loss: "Tensor"
    """The mean loss, a scalar."""
    output: "Tensor"
    """The logits, (B, labels)."""
    targets: "Tensor"
    """1 for each label of a sample and 0 otherwise, (B, labels)."""

    @property
    def size(self) -> int:
        """The number of samples, B."""
        return self.targets.shape[0]


@dataclass(frozen=True)
class RegressionOutput:
    """Regression with one or more numbers per sample. Burn's output of the same name."""

    loss: "Tensor"
    """The mean loss, a scalar."""
    output: "Tensor"
    """The predictions, (B, …)."""
    targets: "Tensor"
    """The target values, of the same shape as the predictions."""

    @property
    def size(self) -> int:
        """The number of samples, B."""
        return self.targets.shape[0]


@dataclass(frozen=True)
class SequenceOutput:
    """A sequence of *T* tokens from a vocabulary of *V*. Burn's output of the same name."""

    loss: "Tensor"
    """The mean loss, a scalar."""
    logits: "Tensor"
    """The logits, (B, T, V)."""
    predictions: "Tensor | None"
    """The decoded tokens, (B, any length), integers; None for the tokens with the highest logits."""
    targets: "Tensor"
    """The target tokens, (B, T), integers."""
    weight: "int | Tensor | None" = None
    """The number of tokens that the loss is the mean of; None: the number of sequences."""

    @property
    def size(self) -> int:
        """The number of samples, B."""
        return self.targets.shape[0]


@dataclass(frozen=True)
class TrainOutput(Generic[Item]):
    """The result of a training step. Burn's output of the same name."""

    model: Any
    """The module that the gradients belong to."""
    gradients: "Sequence[Tensor | None]"
    """One gradient for each of ``model.parameters()``, in order; None if the loss does not depend on it."""
    item: Item
    """The item that metrics measure."""
