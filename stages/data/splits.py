"""Raw data, and its division into two splits."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.contracts.errors import DataError

CHUNK_ROWS = 1 << 18
"""The number of targets counted or sorted at a time."""


@dataclass(frozen=True)
class Arrays:
    """Inputs and their targets, which have the same length; a data source returns them."""

    inputs: np.ndarray
    """(N, …), of any numeric type."""
    targets: np.ndarray
    """(N,) integers for classes, (N,) or (N, …) floats for regression."""
    names: tuple[str, str] | None = None
    """Names of the two arrays in error messages, for example "data.npz: inputs"."""

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Splits:
    """A train and a valid split; a data source with its own valid split returns them."""

    train: Arrays
    valid: Arrays


def split(arrays: Arrays, valid_fraction: float, seed: int) -> Splits:
    """Divide *arrays* at random by *seed*, with the same proportion of every class in both parts.

    Regression targets are divided without strata. Raises `DataError` if a part would be empty or would
    miss a class.
    """
    train, valid = divide(arrays.targets, valid_fraction, seed)
    return Splits(
        *(Arrays(arrays.inputs[rows], arrays.targets[rows], arrays.names) for rows in (train, valid))
    )


def divide(targets: np.ndarray, valid_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the train and the valid samples, stratified by *targets* if they are classes.

    The indices and their order are those of scikit-learn's ``train_test_split``. Raises `DataError` as
    `split` does.
    """
    count, valid = len(targets), round(len(targets) * valid_fraction)
    if not 0 < valid < count:
        raise DataError(
            f"an empty split: valid_fraction {valid_fraction} of {count} samples leaves "
            f"{count - valid} for train and {valid} for valid. Change load_data.valid_fraction"
        )
    generator = np.random.RandomState(seed)
    if targets.dtype.kind in "bui" and targets.ndim == 1:
        return _divide_classes(targets, valid, generator)
    order = generator.permutation(count).astype(_index_type(count))
    return order[valid:], order[:valid]


def _divide_classes(
    targets: np.ndarray, valid: int, generator: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Draw *valid* samples, as scikit-learn's ``StratifiedShuffleSplit`` does."""
    classes, counts = _count_classes(targets)
    train = len(targets) - valid
    if counts.min() < 2 or min(train, valid) < len(classes):
        raise DataError(
            f"{len(targets)} samples cannot be divided so that every class is in both splits: "
            f"class {classes[counts.argmin()]} has {counts.min()}, and {len(classes)} classes share {train} "
            f"samples in train and {valid} in valid. Add samples, or change load_data.valid_fraction"
        )
    rows = _sort_by_class(targets, classes, counts)
    chosen = np.empty(valid, rows.dtype)
    from_train = _shares(counts, train, generator)
    from_valid = _shares(counts - from_train, valid, generator)
    kept = taken = 0
    for end, size, first, second in zip(counts.cumsum(), counts, from_train, from_valid, strict=True):
        drawn = rows[end - size : end][generator.permutation(size)]
        rows[kept : kept + first] = drawn[:first]  # in place: kept never exceeds the start of the class
        chosen[taken : taken + second] = drawn[first : first + second]
        kept, taken = kept + first, taken + second
    generator.shuffle(rows[:train])
    generator.shuffle(chosen)
    return rows[:train], chosen


def _count_classes(targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``np.unique(targets, return_counts=True)`` without a sorted copy of all targets."""
    classes, counts = targets[:0], np.zeros(0, np.int64)
    for start in range(0, len(targets), CHUNK_ROWS):
        found, numbers = np.unique(targets[start : start + CHUNK_ROWS], return_counts=True)
        classes, places = np.unique(np.concatenate((classes, found)), return_inverse=True)
        total = np.zeros(len(classes), np.int64)
        np.add.at(total, places, np.concatenate((counts, numbers)))
        counts = total
    return classes, counts


def _sort_by_class(targets: np.ndarray, classes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return ``targets.argsort(kind="stable")`` in the smallest index type, sorted chunk by chunk."""
    rows = np.empty(len(targets), _index_type(len(targets)))
    ends = counts.cumsum() - counts  # of the placed rows of each class
    for start in range(0, len(targets), CHUNK_ROWS):
        chunk = np.searchsorted(classes, targets[start : start + CHUNK_ROWS])
        order = chunk.argsort(kind="stable")
        added = np.bincount(chunk, minlength=len(classes))
        offsets = np.repeat(ends - (added.cumsum() - added), added)
        rows[offsets + np.arange(len(chunk))] = order + start
        ends += added
    return rows


def _shares(counts: np.ndarray, draws: int, generator: np.random.RandomState) -> np.ndarray:
    """Return the number of *draws* from each class, in proportion to *counts*; ties are broken at random.

    This is scikit-learn's ``_approximate_mode``: the mode of the multivariate hypergeometric distribution.
    """
    exact = counts / counts.sum() * draws
    shares: np.ndarray = np.floor(exact)
    left = int(draws - shares.sum())
    remainders = exact - shares
    for remainder in np.unique(remainders)[::-1]:
        if left <= 0:
            break
        (tied,) = np.nonzero(remainders == remainder)
        chosen = generator.choice(tied, size=min(len(tied), left), replace=False)
        shares[chosen] += 1
        left -= len(chosen)
    return shares.astype(np.int64)


def _index_type(count: int) -> type[np.signedinteger[Any]]:
    """Return the smallest integer type that can index *count* samples."""
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64
