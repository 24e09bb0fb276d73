"""The description of the splits: shapes, classes, counts and normalization."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from stages.contracts.errors import DataError
from stages.data.config import NormalizationConfig
from stages.data.sources.columns import Column, Columns
from stages.data.storage import DatasetInfo, Normalization

DEFAULT_NORMALIZATION = NormalizationConfig()


SUM_VALUES = 1 << 20
"""The number of values added at a time: a multiple of 8192, NumPy's block size for conversions."""


def describe(
    splits: Mapping[str, Columns], normalization: NormalizationConfig = DEFAULT_NORMALIZATION
) -> DatasetInfo:
    """Return the content of ``dataset.json`` for *splits*, by name, without the hash.

    *normalization* is computed over the train split; default: one mean and standard deviation of all values.
    Raises `DataError` if the splits do not match or the train split has fewer than two classes.
    """
    train = splits["train"]
    for name, split in splits.items():
        _check_match(name, train.inputs, split.inputs, "inputs")
        _check_match(name, train.targets, split.targets, "targets")
    is_regression = train.targets.dtype.kind == "f"
    counts = (
        None if is_regression else _class_counts({name: column.targets for name, column in splits.items()})
    )
    return DatasetInfo(
        task="regression" if counts is None else "classification",
        input_shape=train.inputs.shape[1:],
        input_dtype=str(train.inputs.dtype),
        target_shape=train.targets.shape[1:],
        num_classes=None if counts is None else len(counts["train"]),
        counts={name: len(split) for name, split in splits.items()},
        class_counts=counts,
        normalization=compute_normalization(train.inputs, normalization),
    )


def _check_match(split: str, train: Column, other: Column, name: str) -> None:
    if train.shape[1:] != other.shape[1:] or train.dtype != other.dtype:
        raise DataError(
            f"{name} of both splits must have the same type and shape per sample; found {train.dtype} of "
            f"shape {train.shape[1:]} in train and {other.dtype} of shape {other.shape[1:]} in {split}. "
            "Convert one of them"
        )


def _class_counts(splits: Mapping[str, Column]) -> dict[str, list[int]]:
    """Return the number of samples of each class in each split, or of elements if each has a class."""
    largest = max(int(block.max()) for column in splits.values() for block in column.blocks())
    classes = max(0, 1 + largest)  # 0 if all are ignored
    counts = {
        name: sum(
            (np.bincount(block[block >= 0], minlength=classes) for block in column.blocks()),
            np.zeros(classes, np.int64),
        )
        for name, column in splits.items()
    }
    present = np.flatnonzero(counts["train"])
    if len(present) < 2:
        labels = f"one class only ({present[0]})" if len(present) else "ignored targets only"
        raise DataError(
            f"the train split must have at least two classes; found {labels}. Add samples of other classes, "
            "or save float targets for regression"
        )
    return {name: numbers.tolist() for name, numbers in counts.items()}


def compute_normalization(inputs: Column, config: NormalizationConfig) -> Normalization:
    """Return the numbers that normalize *inputs* as *config* states; equal values have a divisor of 1.

    Raises `DataError` if samples without axes must be normalized per channel.
    """
    if config.kind == "none":
        return Normalization(mean=0.0, std=1.0)
    if inputs.moments is not None:
        return _normalize_from(inputs.moments, inputs, config)
    if config.per == "dataset":
        return _compute_mean_std(inputs) if config.kind == "mean_std" else _compute_range(inputs)
    if len(inputs.shape) == 1:
        raise DataError(
            "load_data.normalization.per: 'channel' needs samples with an axis of channels or columns; found "
            "samples of one number. Set it to dataset"
        )
    statistics = _compute_statistics(inputs)
    is_constant = statistics.lows == statistics.highs
    low, high = statistics.lows.astype(np.float64), statistics.highs.astype(np.float64)
    if config.kind == "min_max":
        means, divisors = low, high - low
    else:
        means = np.where(is_constant, low, statistics.means)
        divisors = np.sqrt(statistics.squares / statistics.count)
    divisors = np.where(is_constant | (divisors == 0), 1.0, divisors)
    return Normalization(mean=tuple(means.tolist()), std=tuple(divisors.tolist()))


def _normalize_from(moments: np.ndarray, inputs: Column, config: NormalizationConfig) -> Normalization:
    """Return the same from `Arrays.moments`: sums of integers, which are rounded once."""
    sums, squares, lows, highs = moments if inputs.rows is None else moments[:, inputs.rows]
    axis = None if config.per == "dataset" else 0
    groups = [np.atleast_1d(totals).tolist() for totals in (sums.sum(axis), squares.sum(axis))]
    bounds = [np.atleast_1d(totals).tolist() for totals in (lows.min(axis), highs.max(axis))]
    size = math.prod(inputs.shape) // len(groups[0])
    numbers = [
        (low, high - low) if config.kind == "min_max" else _mean_std(total, square, size)
        for total, square, low, high in zip(*groups, *bounds, strict=True)
    ]
    means, divisors = (tuple(map(float, values)) for values in zip(*numbers, strict=True))
    divisors = tuple(divisor or 1.0 for divisor in divisors)
    if config.per == "dataset":
        return Normalization(mean=means[0], std=divisors[0])
    return Normalization(mean=means, std=divisors)


def _mean_std(total: int, square: int, size: int) -> tuple[float, float]:
    """Return mean and standard deviation of *size* integers from their sum and their sum of squares."""
    return total / size, math.sqrt((size * square - total * total) / (size * size))


@dataclass(frozen=True)
class _Statistics:
    """Sums over the values of each of *C* channels, which can be added to those of other samples."""

    count: int
    """The number of values of a channel."""
    lows: np.ndarray
    highs: np.ndarray
    means: np.ndarray
    squares: np.ndarray
    """Sums of squared deviations from the means, (C,)."""

    @classmethod
    def of(cls, values: np.ndarray) -> Self:
        """Return the statistics of *values*, (C, N)."""
        wide = values.astype(np.float64)
        means = wide.mean(axis=1)
        wide -= means[:, None]
        wide *= wide
        return cls(values.shape[1], values.min(axis=1), values.max(axis=1), means, wide.sum(axis=1))

    def __add__(self, other: Self, /) -> Self:
        """Add as Chan, Golub and LeVeque do (1979), which loses no digits if the mean is large."""
        count = self.count + other.count
        delta = other.means - self.means
        return type(self)(
            count,
            np.minimum(self.lows, other.lows),
            np.maximum(self.highs, other.highs),
            self.means + delta * (other.count / count),
            self.squares + other.squares + delta * delta * (self.count * other.count / count),
        )


def _compute_statistics(inputs: Column) -> _Statistics:
    """Return the statistics of each channel, the second axis of *inputs*, in one pass over the data."""
    blocks = _read_channels(inputs)
    statistics = _Statistics.of(next(blocks))
    for block in blocks:
        statistics += _Statistics.of(block)
    return statistics


def _read_channels(inputs: Column) -> Iterator[np.ndarray]:
    """Yield the values of *inputs* as (C, N), of a few megabytes each."""
    step = max(1, SUM_VALUES // inputs.row_values)
    for start in range(0, len(inputs), step):
        block = inputs.read(slice(start, min(start + step, len(inputs))))
        yield np.moveaxis(block, 1, 0).reshape(block.shape[1], -1)


def _compute_range(inputs: Column) -> Normalization:
    """Return the smallest value and the range of all values; the range is 1 if all are equal."""
    lows, highs = zip(*((float(block.min()), float(block.max())) for block in inputs.blocks()), strict=True)
    return Normalization(mean=min(lows), std=max(highs) - min(lows) or 1.0)


def _compute_mean_std(inputs: Column) -> Normalization:
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
