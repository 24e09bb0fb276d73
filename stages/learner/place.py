"""Where in an epoch a run is: all that the next step depends on beside the state and the history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from stages.contracts.errors import CheckpointError
from stages.contracts.history import Split


@dataclass(frozen=True)
class Place:
    """A place between two batches of an epoch."""

    epoch: int
    """The one that is open, from 1."""
    split: Split
    iteration: int
    """Batches of the split that are done."""
    items: int = 0
    """Samples in them."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """The random state when the split began, which loaders draw their order from."""
    now: Mapping[str, Any] = field(default_factory=dict)
    """The random state here."""
    sums: Mapping[str, Any] = field(default_factory=dict)
    """Every metric over the batches that are done."""
    logs: Mapping[str, Any] = field(default_factory=dict)
    """How far each log has come."""
    buffers: Sequence[Sequence[Tensor]] = ()
    """What the model on each further device has of its own."""

    def to_tree(self) -> dict[str, Any]:
        """As a record holds it."""
        return {**vars(self), "split": self.split.value}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "Place":
        """What `to_tree` gave. Raises `CheckpointError` for anything else."""
        try:
            return cls(**{**tree, "split": Split(tree["split"])})
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"a place in an epoch that is not of this version: {error!r}") from error

    @property
    def order(self) -> tuple[int, bool, int]:
        """Sorts places by how far they are."""
        return self.epoch, self.split is Split.VALID, self.iteration

    def __str__(self) -> str:
        part = "validation" if self.split is Split.VALID else "training"
        return f"in epoch {self.epoch}, after batch {self.iteration} of {part}"
