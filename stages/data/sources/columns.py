"""The arrays of a split, whose rows are selected and converted block by block."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from stages.data.checks import check, input_type, row_blocks, target_type
from stages.data.mapped_arrays import gather, is_mapped, release
from stages.data.sources.tables import TableRows
from stages.data.splits import SPLIT_NAMES, Arrays, Splits, divide_samples


@dataclass(frozen=True)
class Column:
    """An array with the type in which it is stored; memory is used only for the rows that are read."""

    array: np.ndarray
    dtype: np.dtype[Any]
    """The stored type."""
    rows: np.ndarray | None = None
    """Indices of the rows that belong to the column; None for all of them."""
    moments: np.ndarray | None = None
    """`Arrays.moments`, for all rows of *array*."""

    def __len__(self) -> int:
        return len(self.array) if self.rows is None else len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the column; the first axis is that of the samples."""
        return len(self), *self.array.shape[1:]

    @property
    def row_values(self) -> int:
        """The number of values in a row."""
        return math.prod(self.array.shape[1:])

    def read(self, rows: slice) -> np.ndarray:
        """Return *rows* in the stored type, contiguous in memory."""
        release(self.array)
        if self.rows is None:
            block = self.array[rows]
        else:
            chosen = self.rows[rows]
            block = gather(self.array, chosen) if is_mapped(self.array) else self.array[chosen]
        return np.ascontiguousarray(block, self.dtype)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all rows in their order, in blocks of a few megabytes."""
        for rows in row_blocks(len(self), self.row_values * self.array.itemsize):
            yield self.read(rows)

    def values(self, start: int, stop: int) -> np.ndarray:
        """Return the values from *start* to *stop* of the flattened column."""
        first = start // self.row_values
        read = self.read(slice(first, -(-stop // self.row_values))).reshape(-1)
        return read[start - first * self.row_values : stop - first * self.row_values]


@dataclass(frozen=True)
class Columns:
    """The two columns of a split, which have the same length."""

    inputs: Column
    targets: Column

    def __len__(self) -> int:
        return len(self.inputs)

    def select(self, rows: np.ndarray) -> Self:
        """Return the samples at *rows*; the columns must have all of their rows."""
        return replace(self, inputs=replace(self.inputs, rows=rows), targets=replace(self.targets, rows=rows))


def to_columns(arrays: Arrays, where: str) -> Columns:
    """Return *arrays* as columns of the types in which they are stored; *where* names them in errors.

    Floats become float32, classes int64; other inputs keep their type, in native byte order. Raises
    `DataError` as `stages.data.checks.check` does.
    """
    inputs, targets = check(arrays, where)
    return Columns(
        Column(inputs, input_type(inputs.dtype), moments=arrays.moments),
        Column(targets, target_type(targets.dtype)),
    )


def split_columns(
    loaded: Arrays | Splits,
    fractions: Mapping[str, float] | None = None,
    seed: int = 0,
    *,
    stratify: bool = True,
) -> dict[str, Columns]:
    """Return the columns of each split of *loaded* by name: train, and those of valid and test that exist.

    The splits in *fractions* that *loaded* lacks are drawn from its train split as `stages.data.split` draws
    them; a fraction of 0 leaves the split out. The samples of mapped arrays and of tables keep their order in
    each split, so that a file is read from start to end. Raises `DataError` as `to_columns` and `split` do.
    """
    if isinstance(loaded, Arrays):
        arrays, columns = loaded, {"train": to_columns(loaded, "the data")}
    else:
        arrays = loaded.train
        columns = {
            name: to_columns(split_arrays, f"the {name} split")
            for name, split_arrays in loaded.by_name().items()
        }
    missing = {
        name: fraction for name, fraction in (fractions or {}).items() if fraction and name not in columns
    }
    if missing or arrays.splits is not None:
        train = columns["train"]
        parts = divide_samples(arrays, train.targets.array, missing, seed, stratify=stratify)
        if _is_read_in_order(train):
            for rows in parts.values():
                rows.sort()
        columns |= {name: train.select(rows) for name, rows in parts.items()}
    return {name: columns[name] for name in SPLIT_NAMES if name in columns}


def _is_read_in_order(columns: Columns) -> bool:
    inputs: Any = columns.inputs.array
    return isinstance(inputs, TableRows) or is_mapped(inputs) or is_mapped(columns.targets.array)
