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
    """One class a sample. Burn's output of the same name."""

    loss: "Tensor"
    """The mean loss, a scalar."""
    output: "Tensor"
    """The logits, (B, classes)."""
    targets: "Tensor"
    """The class of each sample, (B,), integers."""

    @property
    def size(self) -> int:
        """B."""
        return len(self.targets)


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
        return len(self.targets)


@dataclass(frozen=True)
class TrainOutput(Generic[Item]):
    """What a training step hands to the loop. Burn's output of the same name."""

    model: Any
    """The module that the gradients belong to."""
    gradients: "Sequence[Tensor | None]"
    """One for each of ``model.parameters()``, in that order; none where the loss does not depend on it."""
    item: Item
    """What the metrics measure."""
