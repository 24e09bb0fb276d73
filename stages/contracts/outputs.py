"""What a step returns: the loss and what the metrics need, for one batch of *B* samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item", bound="Output")


class Output(Protocol):
    """What every step's output has; a user's own output needs no more."""

    @property
    def loss(self) -> "Tensor":
        """The mean loss of the batch, a scalar."""

    @property
    def size(self) -> int:
        """The number of samples in the batch."""


@dataclass(frozen=True)
class ClassificationOutput:
    """One class per sample, or per position. Burn's output of the same name."""

    loss: "Tensor"
    """The mean loss, a scalar."""
    output: "Tensor"
    """The logits, (B, C) or (B, C, …); of a binary model with one logit, (B,) or (B, 1)."""
    targets: "Tensor"
    """The class of each sample or position, (B,) or (B, …), integers; -100 is not measured.

    For one logit 0 and 1, which may be floats, (B,) or (B, 1).
    """

    @property
    def size(self) -> int:
        """B."""
        return self.targets.shape[0]


@dataclass(frozen=True)
class MultiLabelClassificationOutput:
    """Any number of labels a sample. Burn's output of the same name."""

    loss: "Tensor"
    """The mean loss, a scalar."""
    output: "Tensor"
    """The logits, (B, labels)."""
    targets: "Tensor"
    """1 where a sample has a label and 0 where not, of the same shape."""

    @property
    def size(self) -> int:
        """B."""
        return self.targets.shape[0]


@dataclass(frozen=True)
class RegressionOutput:
    """Numbers for a sample. Burn's output of the same name."""

    loss: "Tensor"
    """The mean loss, a scalar."""
    output: "Tensor"
    """The predictions, (B, …)."""
    targets: "Tensor"
    """What they should be, of the same shape."""

    @property
    def size(self) -> int:
        """B."""
        return self.targets.shape[0]


@dataclass(frozen=True)
class SequenceOutput:
    """One token a place, of *T* places and *V* tokens. Burn's output of the same name."""

    loss: "Tensor"
    """The mean loss, a scalar."""
    logits: "Tensor"
    """(B, T, V)."""
    predictions: "Tensor | None"
    """The tokens that decoding gave, (B, any length), integers; None where the highest logits are meant."""
    targets: "Tensor"
    """The right tokens, (B, T), integers."""

    @property
    def size(self) -> int:
        """B."""
        return self.targets.shape[0]


@dataclass(frozen=True)
class TrainOutput(Generic[Item]):
    """What a training step hands to the loop. Burn's output of the same name."""

    model: Any
    """The module that the gradients belong to."""
    gradients: "Sequence[Tensor | None]"
    """One for each of ``model.parameters()``, in that order; none where the loss does not depend on it."""
    item: Item
    """What the metrics measure."""
