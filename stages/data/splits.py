"""Raw data before it is prepared, and how one set becomes two."""

from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import train_test_split

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
    """*arrays* divided at random by *seed*, with every class in both parts in its proportion.

    Regression targets are divided without strata. Raises `DataError` where a part would be empty.
    """
    count, valid = len(arrays), round(len(arrays) * valid_fraction)
    if not 0 < valid < count:
        raise DataError(
            f"an empty split: valid_fraction {valid_fraction} of {count} samples leaves "
            f"{count - valid} for train and {valid} for valid"
        )
    classes = arrays.targets if np.issubdtype(arrays.targets.dtype, np.integer) else None
    try:
        parts = train_test_split(
            arrays.inputs, arrays.targets, test_size=valid, random_state=seed, stratify=classes
        )
    except ValueError as error:
        raise DataError(
            f"{count} samples cannot be divided so that every class is in both splits: {error}"
        ) from error
    return Splits(
        train=Arrays(parts[0], parts[2], arrays.names), valid=Arrays(parts[1], parts[3], arrays.names)
    )
