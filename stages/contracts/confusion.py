"""The cells of a confusion matrix, and which of them are shown."""

from collections import Counter
from collections.abc import Hashable, Sequence
from heapq import nlargest
from typing import TypeVar

Class = TypeVar("Class", bound=Hashable)

MAX_SHOWN_CLASSES = 200
"""Classes up to which the whole matrix is shown; a larger one has more cells than a picture has pixels."""
MAX_SHOWN_PAIRS = 100
"""Pairs that are shown of a larger matrix."""


def most_confused(cells: Sequence[tuple[Class, Class, int]]) -> list[tuple[Class, Class, int, int]]:
    """Return the `MAX_SHOWN_PAIRS` pairs of different classes with the highest counts, in descending order.

    *cells* are actual class, predicted class and count of each pair that occurs. The last number of a pair is
    the number of samples of its actual class. Of equal counts the pair that comes first in *cells* is first.
    """
    samples: Counter[Class] = Counter()
    for actual, _, count in cells:
        samples[actual] += count
    wrong = (cell for cell in cells if cell[0] != cell[1])
    shown = nlargest(MAX_SHOWN_PAIRS, wrong, key=lambda cell: cell[2])  # stable, as sorted() is
    return [(actual, predicted, count, samples[actual]) for actual, predicted, count in shown]


def shown_cells(cells: Sequence[tuple[Class, Class, int]], classes: int) -> Sequence[tuple[Class | int, ...]]:
    """Return the cells to show of a matrix of *classes*: all of them, or the most confused pairs."""
    return cells if classes <= MAX_SHOWN_CLASSES else most_confused(cells)
