"""How often each class was taken for each other one."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from stages.contracts.outputs import ClassificationOutput


@dataclass(frozen=True)
class ConfusionMatrix:
    """Counts that add, so that uneven batches weigh what they should."""

    counts: Tensor
    """(actual class, given class), integers."""

    def __add__(self, other: Self, /) -> Self:
        return type(self)(self.counts + other.counts)

    @classmethod
    def of(cls, output: ClassificationOutput) -> Self:
        """That of one batch. A single logit, of class 1, is above 0 where it is given.

        What a loss is told to ignore, by a target that is no class, is not counted.
        """
        logits, actual = output.output.detach(), output.targets.long()
        size = max(logits.shape[-1], 2)
        given = logits.argmax(dim=-1) if logits.shape[-1] > 1 else (logits[:, 0] > 0).long()
        places = (actual * size + given)[(actual >= 0) & (actual < size)]
        return cls(torch.bincount(places, minlength=size * size).reshape(size, size))

    def cells(self) -> list[tuple[int, int, int]]:
        """Actual class, given class and how often, for what was at all."""
        counts = self.counts.cpu()
        return [(*place, int(counts[*place])) for place in counts.nonzero().tolist()]
