"""The arrays of a split, whose rows are selected and converted block by block."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from stages.data.raw_arrays import (
    LazyRows,
    check,
    gather,
    input_type,
    is_mapped,
    release,
    row_blocks,
    target_type,
)
from stages.data.splits import SPLIT_NAMES, Arrays, Splits, divide_samples, find_strata
from stages.data.trees import LeafKind, Ragged, Tree, flatten, is_input, map_leaves, unflatten


@dataclass(frozen=True)
class Column:
    """An array with the type in which it is stored; memory is used only for the rows that are read."""

    array: Any
    """(N, …), in memory or in files; `Ragged`."""
    dtype: np.dtype[Any]
    """The stored type."""
    rows: np.ndarray | None = None
    """Indices of the rows that belong to the column; None for all of them."""
    moments: np.ndarray | None = None
    """`Arrays.moments`, for all rows of *array*."""
    kind: LeafKind = "number"

    def __len__(self) -> int:
        return len(self.array) if self.rows is None else len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the column; the first axis is that of the samples, and -1 that of ragged rows."""
        if isinstance(self.array, Ragged):
            return len(self), -1, *self.array.values.shape[1:]
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

    def to_ragged(self) -> Ragged:
        """Return the rows of a ragged column in the stored type."""
        rows: Ragged = self.array if self.rows is None else self.array[self.rows]
        return replace(rows, values=np.ascontiguousarray(rows.values, self.dtype))

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all rows in their order, in blocks of a few megabytes; those of ragged ones side by side."""
        if isinstance(self.array, Ragged):
            yield self.to_ragged().values
            return
        for rows in row_blocks(len(self), self.row_values * self.array.itemsize):
            yield self.read(rows)

    @property
    def total(self) -> int | None:
        """The sum of all values if it is known without reading them, and float64 has it exactly."""
        array = self.array
        totals = array.samples.totals.get(array.name) if isinstance(array, LazyRows) else None
        if totals is None:
            return None
        return int((totals if self.rows is None else totals[self.rows]).sum(dtype=np.int64))


@dataclass(frozen=True)
class Columns:
    """The columns of a split, which have the same length."""

    inputs: Tree
    """A column, or a tuple or dict of columns."""
    targets: Tree = None

    def __len__(self) -> int:
        return len(next(iter(self.leaves.values())))

    @property
    def leaves(self) -> dict[str, Column]:
        """The columns by their names, such as ``inputs`` and ``targets.mask``."""
        return flatten(self.inputs, "inputs") | flatten(self.targets, "targets")

    def select(self, rows: np.ndarray) -> Self:
        """Return the samples at *rows*; the columns must have all of their rows."""
        selected = (
            map_leaves(lambda column: replace(column, rows=rows), tree)
            for tree in (self.inputs, self.targets)
        )
        return type(self)(*selected)


def to_columns(arrays: Arrays, where: str) -> Columns:
    """Return *arrays* as columns of the types in which they are stored; *where* names them in errors.

    Floats become float32, classes int64; masks and other inputs keep their type, in native byte order. Raises
    `DataError` as `stages.data.raw_arrays.check` does.
    """
    columns = {
        name: Column(
            array,
            input_type(array.dtype) if is_input(name) else target_type(array.dtype, kind),
            moments=arrays.moments if name == "inputs" else None,
            kind=kind,
        )
        for name, (array, kind) in check(arrays, where).items()
    }
    return Columns(unflatten(columns, "inputs"), unflatten(columns, "targets"))


def split_columns(
    loaded: Arrays | Splits,
    fractions: Mapping[str, float] | None = None,
    seed: int = 0,
    *,
    stratify: bool = True,
) -> dict[str, Columns]:
    """Return the columns of each split of *loaded* by name: train, and those of valid and test that exist.

    The splits in *fractions* that *loaded* lacks are drawn from its train split as `stages.data.split` draws
    them; a fraction of 0 leaves the split out. The samples of mapped arrays keep their order in
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
        targets = find_strata(map_leaves(_find_values, train.targets), len(train))
        parts = divide_samples(arrays, targets, missing, seed, stratify=stratify)
        if any(is_mapped(column.array) for column in train.leaves.values()):
            for rows in parts.values():
                rows.sort()
        columns |= {name: train.select(rows) for name, rows in parts.items()}
    return {name: columns[name] for name in SPLIT_NAMES if name in columns}


def _find_values(column: Column) -> Any:
    """Return the array of a column; None if its values are read when they are needed."""
    array = column.array
    return array.samples.values.get(array.name) if isinstance(array, LazyRows) else array
