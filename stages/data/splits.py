"""Raw data before it is prepared, and its division into two splits."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.contracts.errors import DataError


@dataclass(frozen=True)
class Arrays:
    """Inputs and their targets, of one length. What a data source returns for `split` to divide."""

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
    """What a data source returns if it has a valid split of its own."""

    train: Arrays
    valid: Arrays


def split(arrays: Arrays, valid_fraction: float, seed: int) -> Splits:
    """Divide *arrays* at random by *seed*, with every class in both parts in its proportion.

    Regression targets are divided without strata. Raises `DataError` if a part would be empty, or would
    lack a class.
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
            f"{count - valid} for train and {valid} for valid; change load_data.valid_fraction"
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
    classes, counts = np.unique(targets, return_counts=True)
    train = len(targets) - valid
    if counts.min() < 2 or min(train, valid) < len(classes):
        raise DataError(
            f"{len(targets)} samples cannot be divided so that every class is in both splits: "
            f"class {classes[counts.argmin()]} has {counts.min()}, and {len(classes)} classes share {train} "
            f"samples in train and {valid} in valid; add samples, or change load_data.valid_fraction"
        )
    by_class = targets.argsort(kind="stable").astype(_index_type(len(targets)))
    from_train = _shares(counts, train, generator)
    from_valid = _shares(counts - from_train, valid, generator)
    parts: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for end, size, first, second in zip(counts.cumsum(), counts, from_train, from_valid, strict=True):
        drawn = by_class[end - size : end][generator.permutation(size)]
        parts[0].append(drawn[:first])
        parts[1].append(drawn[first : first + second])
    chosen = np.concatenate(parts[0]), np.concatenate(parts[1])
    for rows in chosen:
        generator.shuffle(rows)
    return chosen


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
    """Return the smaller type that indexes *count* samples: the indices stay in memory."""
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64
