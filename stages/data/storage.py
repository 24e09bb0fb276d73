"""Prepared data on disk: one safetensors file for each split, and ``dataset.json``, which describes them.

The description has the classes, and the mean and the standard deviation of the train split.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from pydantic import ValidationError

from stages.contracts.config import Config, Use
from stages.contracts.errors import DataError
from stages.contracts.fields import OPTIONAL
from stages.contracts.text import to_json
from stages.data.config import NormalizationConfig
from stages.data.image_files import ImageFiles, ImageFormat
from stages.data.raw_arrays import LazyRows
from stages.data.sources.columns import Column, Columns
from stages.data.splits import SPLIT_NAMES
from stages.data.trees import ENDS, LeafKind, Ragged, is_input, merge
from stages.records.safetensors_format import pack_header
from stages.system.files import open_atomic, read_regular, write_text

DATASET_FILE = "dataset.json"
"""The description of the splits, in the directory of the prepared data and in that of the exports."""
TYPES = {
    "uint64": "U64",
    "int64": "I64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "uint16": "U16",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""Stored types and their names in a safetensors file, in the order in which its tensors are written."""


class Normalization(Config):
    """The normalization of inputs, ``(x - mean) / std``, computed over the train split.

    Both are one number, or one for each channel: for each index of the first axis of a sample.
    """

    mean: float | tuple[float, ...]
    """The mean; the smallest value for ``min_max``; 0 for ``none``."""
    std: float | tuple[float, ...]
    """The standard deviation; the range of values for ``min_max``; 1 for ``none`` and for equal values."""


Shapes: TypeAlias = tuple[int, ...] | dict[str, tuple[int, ...]]
"""A shape, or the shapes of several leaves by their short names; -1 is the number of ragged rows."""


class LeafInfo(Config):
    """A leaf of a sample."""

    kind: LeafKind
    shape: tuple[int, ...]
    """Its shape in one sample; -1 is the number of ragged rows."""
    dtype: str
    """The stored type."""


class DatasetInfo(Config):
    """The content of ``dataset.json``.

    If inputs or targets are a tuple or a dict, a field has the values of their leaves by their short names.
    """

    task: Literal["classification", "regression", "unsupervised", "structured"]
    """``unsupervised`` without targets, ``structured`` if targets are a tuple, a dict or ragged."""
    input_shape: Shapes
    """The shape of one sample."""
    input_dtype: str | dict[str, str]
    target_shape: Shapes | None
    """The shape of one target; empty for a single number or class; None without targets."""
    num_classes: int | dict[str, int | None] | None
    """None for regression."""
    counts: dict[str, int]
    """The number of samples in each split: train, and those of valid and test that exist."""
    class_counts: dict[str, list[int]] | dict[str, dict[str, list[int] | None]] | None
    """The number of samples of each class in each split, or of elements if each has a class; None for
    regression."""
    normalization: Normalization | dict[str, Normalization | None] | None
    """None for tokens."""
    sha256: str = ""
    """The SHA-256 of the content of the split files: train, valid, test."""
    class_names: tuple[str, ...] | dict[str, tuple[str, ...] | None] | None = OPTIONAL
    """The names of the classes, if the source has names; by their names for several targets."""
    feature_names: tuple[str, ...] | None = OPTIONAL
    """The names of the features of a table, in their order in a sample."""
    categories: dict[str, tuple[str | None, ...]] | None = OPTIONAL
    """The categories of each categorical column of a table, in the order of their codes; None: missing."""
    feature_means: dict[str, float] | None = OPTIONAL
    """The mean of each column of numbers in a table, with which its missing values are filled."""
    skipped: int | None = OPTIONAL
    """The number of corrupt files, or of rows with missing values, that the source was set to leave out."""
    tokenizer: dict[str, Any] | None = OPTIONAL
    """The content of the ``tokenizer.json`` of texts; ``{"kind": "bytes"}`` for bytes."""
    vocabulary_size: int | None = OPTIONAL
    """The number of ids of tokens, with 0 for padding."""
    truncated: int | None = OPTIONAL
    """The number of texts that were cut."""
    index: ImageFormat | dict[str, ImageFormat] | None = OPTIONAL
    """The form of images in files, of which the split files have an index, or the forms of several leaves by
    their names; None for tensors."""
    factory: Use | None = OPTIONAL
    """The factory of datasets whose samples are read when they are needed; None for others."""
    leaves: dict[str, LeafInfo] | None = OPTIONAL
    """The leaves of a sample by their names; None for two arrays without masks."""

    @property
    def num_outputs(self) -> int | dict[str, int]:
        """The number of values that a model predicts for one sample; of its inputs without targets."""
        shapes = self.input_shape if self.target_shape is None else self.target_shape
        if not isinstance(shapes, dict):
            return self.num_classes if isinstance(self.num_classes, int) else math.prod(shapes)
        classes = self.num_classes if isinstance(self.num_classes, dict) else {}
        return {name: classes.get(name) or abs(math.prod(shape)) for name, shape in shapes.items()}

    @property
    def kinds(self) -> dict[str, LeafKind] | None:
        """The kinds of the leaves by their names; None for two arrays."""
        if self.leaves is None:
            return None
        return {name: leaf.kind for name, leaf in self.leaves.items()}

    @property
    def formats(self) -> dict[str, ImageFormat]:
        """The forms of the leaves in files by their names."""
        return {"inputs": self.index} if isinstance(self.index, ImageFormat) else self.index or {}

    @property
    def scaling(self) -> Normalization | dict[str, Normalization | None] | None:
        """The normalization that applies: none to ids of tokens."""
        is_one_leaf = not isinstance(self.input_shape, dict)
        return None if self.vocabulary_size is not None and is_one_leaf else self.normalization


def write_columns(directory: Path, info: DatasetInfo, splits: Mapping[str, Columns]) -> None:
    """Write the split files to *directory*, then ``dataset.json`` with the hash of their content.

    The files of splits that an earlier call has written, and that *splits* lacks, are removed.
    """
    digest = hashlib.sha256()
    for name in set(SPLIT_NAMES) - set(splits):
        (directory / f"{name}.safetensors").unlink(missing_ok=True)
    for name, split in splits.items():
        with open_atomic(directory / f"{name}.safetensors") as file:
            for chunk in _encode(_select_columns(split)):
                digest.update(chunk)
                file.write(chunk)
    info = info.model_copy(update={"sha256": digest.hexdigest()})
    write_text(directory / DATASET_FILE, to_json(info.model_dump(mode="json")) + "\n")


def read_info(path: Path) -> DatasetInfo:
    """Return the content of ``dataset.json`` at *path*. Raises `DataError` if it is missing or invalid."""
    try:
        return DatasetInfo.model_validate_json(read_regular(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}). Run load-data first") from error
    except ValidationError as error:
        raise DataError(
            f"{path} was not written by load-data: {error.errors()[0]['msg']}. Run load-data again"
        ) from error


def _select_columns(split: Columns) -> dict[str, Column]:
    """Return the tensors of a split file by name: those of an index for a leaf in files."""
    tensors: dict[str, Any] = {}
    for name, column in split.leaves.items():
        array = column.array
        if isinstance(array, LazyRows):
            rows = np.arange(len(column)) if column.rows is None else column.rows.astype(np.int64)
            tensors |= {"rows": rows, "hashes": array.samples.hashes[rows]}
        elif isinstance(array, ImageFiles):
            chosen, prefix = array if column.rows is None else array.select(column.rows), prefix_of(name)
            tensors |= {f"{prefix}{key}": values for key, values in chosen.to_arrays().items()}
        elif isinstance(array, Ragged):
            ragged = column.to_ragged()
            tensors |= {name: ragged.values, f"{name}{ENDS}": ragged.ends}
        else:
            tensors[name] = column
    return {
        key: part if isinstance(part, Column) else Column(part, part.dtype) for key, part in tensors.items()
    }


def prefix_of(name: str) -> str:
    """Return the beginning of the names of the arrays in a split file that list the files of a leaf."""
    return "" if name == "inputs" else f"{name}:"


def _encode(columns: Mapping[str, Column]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file, as the reference implementation writes them."""
    ranks = list(TYPES)
    names = sorted(columns, key=lambda name: (ranks.index(str(columns[name].dtype)), name))
    chosen = ((name, columns[name]) for name in names)
    yield pack_header(
        {},
        (
            (name, TYPES[str(column.dtype)], column.shape, math.prod(column.shape) * column.dtype.itemsize)
            for name, column in chosen
        ),
    )
    for name in names:
        for block in columns[name].blocks():
            yield block.astype(block.dtype.newbyteorder("<"), copy=False).data


DEFAULT_NORMALIZATION = NormalizationConfig()
SUM_VALUES = 1 << 16
"""The number of values added at a time: a multiple of 8192, NumPy's block size for conversions."""
CHANNEL_VALUES = 1 << 20
"""The number of values whose statistics of channels are computed at a time, on which their bits depend."""


def describe(
    splits: Mapping[str, Columns], normalization: NormalizationConfig = DEFAULT_NORMALIZATION
) -> DatasetInfo:
    """Return the content of ``dataset.json`` for *splits*, by name, without the hash.

    *normalization* is computed over the train split; default: one mean and standard deviation of all values.
    Raises `DataError` if the splits do not match or the train split has fewer than two classes.
    """
    leaves = {name: split.leaves for name, split in splits.items()}
    train = leaves["train"]
    for name, columns in leaves.items():
        _check_match(name, train, columns)
    inputs = {name: column for name, column in train.items() if is_input(name)}
    targets = {name: column for name, column in train.items() if not is_input(name)}
    counts = {name: _count_leaf(name, leaves) for name in targets}
    per_split = {
        split: merge({name: split_counts and split_counts[split] for name, split_counts in counts.items()})
        for split in leaves
    }
    scales = {name: _normalize_leaf(column, normalization, len(inputs)) for name, column in inputs.items()}
    described = {
        name: LeafInfo(kind=column.kind, shape=column.shape[1:], dtype=str(column.dtype))
        for name, column in train.items()
    }
    return DatasetInfo(
        task=_name_task(counts, targets),
        input_shape=merge({name: column.shape[1:] for name, column in inputs.items()}),
        input_dtype=merge({name: str(column.dtype) for name, column in inputs.items()}),
        target_shape=merge({name: column.shape[1:] for name, column in targets.items()}),
        num_classes=merge({name: numbers and len(numbers["train"]) for name, numbers in counts.items()}),
        counts={name: len(split) for name, split in splits.items()},
        class_counts=per_split if any(counts.values()) else None,
        normalization=merge(scales),
        leaves=None if _is_plain(train) else described,
    )


def _is_plain(leaves: Mapping[str, Column]) -> bool:
    """Return whether the kinds follow from the shapes of two arrays."""
    if list(leaves) != ["inputs", "targets"] or leaves["targets"].kind not in ("classes", "number"):
        return False
    inputs = leaves["inputs"]
    is_inferred = inputs.kind == ("image" if len(inputs.shape) == 4 else "number")
    return is_inferred and not isinstance(leaves["targets"].array, Ragged | LazyRows)


def _name_task(counts: Mapping[str, Any], targets: Mapping[str, Column]) -> Any:
    if not targets:
        return "unsupervised"
    if list(targets) != ["targets"] or isinstance(targets["targets"].array, Ragged):
        return "structured"
    return "regression" if counts["targets"] is None else "classification"


def _normalize_leaf(column: Column, config: NormalizationConfig, leaves: int) -> Normalization | None:
    """Return the normalization of one of several *leaves*; None for tokens and ragged rows."""
    if column.kind == "tokens" or isinstance(column.array, Ragged):
        return None
    is_number = leaves > 1 and len(column.shape) == 1
    return compute_normalization(
        column, config.model_copy(update={"per": "dataset"}) if is_number else config
    )


def _count_leaf(name: str, splits: Mapping[str, Mapping[str, Column]]) -> dict[str, list[int]] | None:
    """Return the number of elements of each class in each split; None for a leaf of numbers."""
    columns = {split: leaves[name] for split, leaves in splits.items()}
    if columns["train"].dtype.kind == "f":
        return None
    by_split = {split: _count_classes(column) for split, column in columns.items()}
    classes = max(map(len, by_split.values()))  # 0 if all are ignored
    counts = {split: np.pad(numbers, (0, classes - len(numbers))) for split, numbers in by_split.items()}
    present = np.flatnonzero(counts["train"])
    if len(present) < 2 and not isinstance(columns["train"].array, Ragged):  # boxes may have one class
        labels = f"one class only ({present[0]})" if len(present) else "ignored targets only"
        raise DataError(
            f"the train split must have at least two classes; found {labels}. Add samples of other classes, "
            "or save float targets for regression"
        )
    return {split: numbers.tolist() for split, numbers in counts.items()}


def _check_match(split: str, train: Mapping[str, Column], other: Mapping[str, Column]) -> None:
    """Raise `DataError` if the leaves of *split* are not those of the train split."""
    if list(train) != list(other):
        raise DataError(
            f"the samples of all splits must have the same leaves; found {', '.join(train)} in train and "
            f"{', '.join(other)} in {split}. Convert one of them"
        )
    for name, column in train.items():
        if column.shape[1:] != other[name].shape[1:] or column.dtype != other[name].dtype:
            raise DataError(
                f"{name} of both splits must have the same type and shape per sample; found {column.dtype} "
                f"of shape {column.shape[1:]} in train and {other[name].dtype} of shape "
                f"{other[name].shape[1:]} in {split}. Convert one of them"
            )


def _count_classes(column: Column) -> np.ndarray:
    """Return the number of elements of each class up to the largest one, int64."""
    counts = np.zeros(0, np.int64)
    for block in column.blocks():
        shorter, counts = sorted((counts, np.bincount(block[block >= 0])), key=len)
        counts[: len(shorter)] += shorter
    return counts


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
    statistics = reduce(add, map(_Statistics.of, _read_channels(inputs)))
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


def _read_channels(inputs: Column) -> Iterator[np.ndarray]:
    """Yield the values of *inputs* as (C, N), of a few megabytes each."""
    step = max(1, CHANNEL_VALUES // inputs.row_values)
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
    total = inputs.total
    mean = (_add_values(inputs, size) if total is None else np.float64(total)) / size
    reader, first = _ValueReader(inputs), inputs.read(slice(1)).flat[0]
    is_constant = True

    def add_squares(count: int) -> np.float64:
        """Return the sum of squared deviations of the next values."""
        nonlocal is_constant
        values = reader.read(count)
        is_constant = is_constant and bool((values == first).all())
        deviations = np.subtract(values, mean, dtype=np.float64)
        deviations *= deviations
        return np.float64(np.add.reduce(deviations))

    variance = _pairwise_sum(add_squares, size) / size
    return Normalization(mean=float(mean), std=1.0 if is_constant else math.sqrt(variance) or 1.0)


def _add_values(column: Column, size: int) -> np.float64:
    reader, total = _ValueReader(column), np.float64(0)
    for start in range(0, size, SUM_VALUES):
        values = reader.read(min(SUM_VALUES, size - start))
        total = np.add.reduce(values, dtype=np.float64, initial=total)
    return total


class _ValueReader:
    """The values of a flattened column from the first to the last; each row is read once."""

    def __init__(self, column: Column) -> None:
        self._blocks = column.blocks()
        self._values = np.empty(0, column.dtype)

    def read(self, count: int) -> np.ndarray:
        """Return the next *count* values."""
        parts = []
        while count:
            if not len(self._values):
                self._values = np.empty(0, self._values.dtype)  # frees the last block before the next is read
                self._values = next(self._blocks).reshape(-1)
            part, self._values = self._values[:count], self._values[count:]
            parts.append(part if len(self._values) else part.copy())
            count -= len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _pairwise_sum(sum_of: Callable[[int], np.float64], count: int) -> np.float64:
    """Add the next *count* values in halves, as NumPy adds a contiguous array."""
    if count <= SUM_VALUES:
        return sum_of(count)
    middle = count // 2 - count // 2 % 8
    return _pairwise_sum(sum_of, middle) + _pairwise_sum(sum_of, count - middle)
