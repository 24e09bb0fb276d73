"""The selection of the cells of a confusion matrix that are written and drawn."""

from collections import Counter
from collections.abc import Hashable, Sequence
from heapq import nlargest
from typing import TypeVar

Class = TypeVar("Class", bound=Hashable)

MAX_SHOWN_CLASSES = 200
"""The largest number of classes for which all cells are shown; more cells would not fit in a picture."""
MAX_SHOWN_PAIRS = 100
"""The number of pairs that are shown of a larger matrix."""


def select_most_confused(cells: Sequence[tuple[Class, Class, int]]) -> list[tuple[Class, Class, int, int]]:
    """Return the `MAX_SHOWN_PAIRS` pairs of different classes with the highest counts, in descending order.

    *cells* contains the actual class, predicted class and count of each pair that occurs. A returned pair has
    the number of samples of its actual class as a fourth number. Pairs with equal counts stay in the order of
    *cells*.
    """
    samples: Counter[Class] = Counter()
    for actual, _, count in cells:
        samples[actual] += count
    errors = (cell for cell in cells if cell[0] != cell[1])
    shown = nlargest(MAX_SHOWN_PAIRS, errors, key=lambda cell: cell[2])  # stable, as sorted() is
    return [(actual, predicted, count, samples[actual]) for actual, predicted, count in shown]


def select_cells(
    cells: Sequence[tuple[Class, Class, int]], classes: int
) -> Sequence[tuple[Class | int, ...]]:
    """Return the cells to show of a matrix with *classes* classes: all of them, or the most confused pairs.

    See `select_most_confused` for the form of *cells*, and of the pairs.
    """
    return cells if classes <= MAX_SHOWN_CLASSES else select_most_confused(cells)
