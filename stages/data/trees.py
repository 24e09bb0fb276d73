"""Samples as nested structures: a leaf, or a tuple or dict of structures; None has no leaf.

A leaf has a dotted name: ``inputs`` alone, ``inputs.image`` in a dict, ``inputs.0`` in a tuple.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from stages.contracts.errors import DataError

Tree: TypeAlias = Any
"""A leaf, a tuple or a dict of trees, or None."""
LeafKind = Literal["image", "mask", "boxes", "classes", "tokens", "number"]
"""The meaning of a leaf: ``image`` (C, H, W), ``mask`` (H, W) of classes, ``boxes`` (n, 4) of pixels."""
ENDS = ":ends"
"""The ending of the name of the array with the ends of a `Ragged` leaf."""
NAME = re.compile(r"[^.:]+")


class Views(tuple[Tree, ...]):
    """Several views of the inputs of the same samples, which are normalized alike."""

    __slots__ = ()


def flatten(tree: Tree, name: str) -> dict[str, Any]:
    """Return the leaves of *tree* by their names, which begin with *name*.

    Raises `DataError` for a key that is empty, or has a ``.`` or a ``:``.
    """
    if tree is None:
        return {}
    if not isinstance(tree, Mapping | tuple):
        return {name: tree}
    leaves: dict[str, Any] = {}
    for key, entry in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
        if not NAME.fullmatch(str(key)):
            raise DataError(f"{name}: the name of a leaf may have no '.' or ':'; found {key!r}. Rename it")
        leaves |= flatten(entry, f"{name}.{key}")
    return leaves


def is_input(name: str) -> bool:
    """Return whether the leaf *name* is one of the inputs."""
    return name.partition(".")[0] == "inputs"


def unflatten(leaves: Mapping[str, Any], name: str) -> Tree:
    """Return the tree of the *leaves* whose names begin with *name*: the inverse of `flatten`.

    The keys of a dict are sorted. Keys that count from 0 are those of a tuple.
    """
    if name in leaves:
        return leaves[name]
    prefix = f"{name}."
    keys = {path[len(prefix) :].partition(".")[0] for path in leaves if path.startswith(prefix)}
    if not keys:
        return None
    if keys == {str(number) for number in range(len(keys))}:
        return tuple(unflatten(leaves, f"{prefix}{number}") for number in range(len(keys)))
    return {key: unflatten(leaves, f"{prefix}{key}") for key in sorted(keys)}


def map_leaves(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return *tree* with *function* applied to each leaf."""
    if isinstance(tree, Mapping):
        return {key: map_leaves(function, entry) for key, entry in tree.items()}
    if isinstance(tree, tuple):
        entries = [map_leaves(function, entry) for entry in tree]
        return Views(entries) if isinstance(tree, Views) else tuple(entries)
    return None if tree is None else function(tree)


def list_names(part: str | Sequence[str]) -> Sequence[str]:
    """Return the names in *part*, a param that is a name or a list of names."""
    return [part] if isinstance(part, str) else part


def pick(leaves: Mapping[str, Any], part: str | Sequence[str]) -> Tree:
    """Return the leaf named *part*, or a dict of those with several names."""
    return leaves[part] if isinstance(part, str) else {name: leaves[name] for name in part}


def take(tree: Tree, index: Any) -> Tree:
    """Return the samples of *tree* at *index*, an index, a slice or an array of indices."""
    return map_leaves(lambda leaf: leaf[index], tree)


def list_leaves(tree: Tree) -> list[Any]:
    """Return the leaves of *tree*."""
    return list(flatten(tree, "leaf").values())


def count_rows(tree: Tree) -> int:
    """Return the number of samples in *tree*, the length of its first leaf."""
    return len(list_leaves(tree)[0] if isinstance(tree, Mapping | tuple) else tree)


def shorten(name: str) -> str:
    """Return the *name* of a leaf without ``inputs`` or ``targets``; unchanged if it has no more."""
    return name.partition(".")[2] or name


def merge(values: Mapping[str, Any]) -> Any:
    """Return the values of leaves by their short names; a single one as it is, and None without leaves."""
    if len(values) == 1 and "." not in next(iter(values)):
        return next(iter(values.values()))
    return {shorten(name): value for name, value in values.items()} or None


@dataclass(frozen=True)
class Ragged:
    """Rows of several lengths, stored without padding, such as the boxes of images.

    Sample i has the rows ``values[ends[i - 1]:ends[i]]``, which may be none.
    """

    values: Any
    """(M, …), an array or a tensor."""
    ends: np.ndarray
    """(N,), int64."""

    @classmethod
    def of(cls, samples: Iterable[Any], width: tuple[int, ...] = ()) -> Self:
        """Return *samples*, arrays (n, …); *width* is the shape of a row if a sample has none."""
        arrays = [np.asarray(sample) for sample in samples]
        arrays = [array if array.size else array.reshape(0, *width) for array in arrays]
        filled = [array for array in arrays if len(array)] or arrays[:1]
        return cls(np.concatenate(filled), np.cumsum([len(array) for array in arrays], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def dtype(self) -> Any:
        """The type of the values."""
        return self.values.dtype

    @property
    def ndim(self) -> int:
        """The number of axes of an array of the padded rows."""
        return int(self.values.ndim) + 1

    @property
    def lengths(self) -> np.ndarray:
        """The number of rows of each sample, (N,), int64."""
        return np.diff(self.ends, prepend=0)

    def __getitem__(self, index: Any) -> Any:
        """Return the rows of one sample, or the samples at several indices."""
        if isinstance(index, int | np.integer):
            end = int(self.ends[index])
            return self.values[end - int(self.lengths[index]) : end]
        chosen = np.arange(len(self))[np.asarray(index) if not isinstance(index, slice) else index]
        lengths = self.lengths[chosen]
        ends = lengths.cumsum()
        rows = np.arange(int(ends[-1]) if len(ends) else 0)
        return Ragged(self.values[rows + np.repeat(self.ends[chosen] - ends, lengths)], ends)

    def keep(self, is_kept: np.ndarray) -> "Ragged":
        """Return the rows for which *is_kept*, (M,), is true."""
        return Ragged(self.values[is_kept], np.concatenate(([0], np.cumsum(is_kept)))[self.ends])
