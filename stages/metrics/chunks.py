"""Things that pile up over an epoch, without copying the pile for each."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Generic, Self, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Chunks(Generic[T]):
    """Things in the order they came; adding *n* of them one by one takes n·log(n) steps, not n²."""

    runs: tuple[tuple[T, ...], ...] = ()
    """Each shorter than the one before, as the digits of a binary number are worth less and less."""

    def __add__(self, other: Self, /) -> Self:
        runs = list(self.runs)
        for added in other.runs:
            run = added
            while runs and len(runs[-1]) <= len(run):
                run = runs.pop() + run
            runs.append(run)
        return type(self)(tuple(runs))

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.runs)
