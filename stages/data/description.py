"""The description of two splits: shapes, classes, counts and normalization."""

import math
from collections.abc import Callable

import numpy as np

from stages.contracts.errors import DataError
from stages.data.columns import Column, Columns
from stages.data.storage import DatasetInfo, Normalization

SUM_VALUES = 1 << 20
"""The number of values added at a time: a multiple of 8192, NumPy's block size for conversions."""


def describe(train: Columns, valid: Columns) -> DatasetInfo:
    """Return the content of ``dataset.json`` for two splits, without the hash.

    Raises `DataError` if the splits do not match or the train split has one class only.
    """
    _check_match(train.inputs, valid.inputs, "inputs")
    _check_match(train.targets, valid.targets, "targets")
    is_regression = train.targets.dtype.kind == "f"
    counts = None if is_regression else _class_counts(train.targets, valid.targets)
    return DatasetInfo(
        task="regression" if counts is None else "classification",
        input_shape=train.inputs.shape[1:],
        input_dtype=str(train.inputs.dtype),
        target_shape=train.targets.shape[1:],
        num_classes=None if counts is None else len(counts["train"]),
        counts={"train": len(train), "valid": len(valid)},
        class_counts=counts,
        normalization=_normalization(train.inputs),
    )


def _check_match(train: Column, valid: Column, name: str) -> None:
    if train.shape[1:] != valid.shape[1:] or train.dtype != valid.dtype:
        raise DataError(
            f"{name} of both splits must have the same type and shape per sample; found {train.dtype} of "
            f"shape {train.shape[1:]} in train and {valid.dtype} of shape {valid.shape[1:]} in valid. "
            "Convert one of them"
        )


def _class_counts(train: Column, valid: Column) -> dict[str, list[int]]:
    """Return the number of samples of each class in each split."""
    classes = 1 + max(int(block.max()) for column in (train, valid) for block in column.blocks())
    in_train, in_valid = (
        sum((np.bincount(block, minlength=classes) for block in column.blocks()), np.zeros(classes, np.int64))
        for column in (train, valid)
    )
    if np.count_nonzero(in_train) == 1:
        raise DataError(
            f"the train split must have at least two classes; found one class only ({in_train.argmax()}). "
            "Add samples of other classes, or save float targets for regression"
        )
    return {"train": in_train.tolist(), "valid": in_valid.tolist()}


def _normalization(inputs: Column) -> Normalization:
    """Return mean and standard deviation of all values, in float64; the latter is 1 if all are equal.

    Both have the bits of NumPy's ``mean`` and ``std`` of a contiguous array, which need a copy of the data.
    """
    size = math.prod(inputs.shape)
    total = np.float64(0)
    for start in range(0, size, SUM_VALUES):
        values = inputs.values(start, min(start + SUM_VALUES, size))
        total = np.add.reduce(values, dtype=np.float64, initial=total)
    mean = total / size
    if _is_constant(inputs):
        return Normalization(mean=float(mean), std=1.0)

    def squares(start: int, stop: int) -> np.float64:
        """Return the sum of squared deviations of some values."""
        deviations = inputs.values(start, stop).astype(np.float64)
        deviations -= mean
        deviations *= deviations
        return np.float64(np.add.reduce(deviations))

    return Normalization(mean=float(mean), std=math.sqrt(_pairwise_sum(squares, 0, size) / size) or 1.0)


def _is_constant(column: Column) -> bool:
    """Return whether all values are equal; most columns are read up to their first block only."""
    first = column.values(0, 1)
    return all((block == first).all() for block in column.blocks())


def _pairwise_sum(sum_of: Callable[[int, int], np.float64], start: int, stop: int) -> np.float64:
    """Add the values from *start* to *stop* in halves, as NumPy adds a contiguous array."""
    count = stop - start
    if count <= SUM_VALUES:
        return sum_of(start, stop)
    middle = start + count // 2 - count // 2 % 8
    return _pairwise_sum(sum_of, start, middle) + _pairwise_sum(sum_of, middle, stop)
