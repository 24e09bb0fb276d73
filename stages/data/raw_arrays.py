"""Raw arrays: in memory or in mapped files, and the checks of their shapes, types and values."""

import hashlib
import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from tempfile import TemporaryFile
from typing import IO, Any, Self

import numpy as np

from stages.contracts.errors import DataError
from stages.contracts.outputs import IGNORED_TARGET
from stages.data.image_files import FileArray, ImageFiles
from stages.data.splits import Arrays
from stages.data.trees import LeafKind, Ragged, flatten, is_input

SMALL_LEAF_BYTES = 64
"""The size of a leaf of one sample, such as a class, up to which the values of all samples are in memory."""
SPAN_BYTES = 1 << 25
"""The part of a file from which rows are gathered before its pages are released."""


MAX_EXACT_SUM = 2**53
"""The largest integer up to which float64 has all integers."""
MAX_CLASSES = 10_000_000
MASK_TYPES = ("uint8", "int8", "int16", "int32")
"""The types in which masks are stored as they are; a batch has them as int64."""
BLOCK_BYTES = 1 << 22
"""Memory of one block of rows in a pass over an array."""


def map_file(file: IO[bytes], offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return the array of *shape* that begins at byte *offset* of *file*; it cannot be changed.

    The file may be closed afterwards.
    """
    if not math.prod(shape):
        return np.empty(shape, dtype)
    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.ndarray(shape, dtype, buffer=mapping, offset=offset)


def is_mapped(array: np.ndarray) -> bool:
    """Return whether *array* is in a file that is mapped into memory."""
    return _find_mapping(array) is not None


def release(array: np.ndarray) -> None:
    """Release the memory of the pages of a mapped *array*; they are read again when they are used."""
    mapping = _find_mapping(array)
    if mapping is not None:
        mapping.madvise(mmap.MADV_DONTNEED)


def gather(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return *rows*, in ascending order, of a mapped *array*; at most `SPAN_BYTES` of it are resident."""
    gathered = np.empty((len(rows), *array.shape[1:]), array.dtype)
    span = max(1, SPAN_BYTES // max(1, array.nbytes // len(array)))
    start = 0
    while start < len(rows):
        stop = int(np.searchsorted(rows, rows[start] + span))
        gathered[start:stop] = array[rows[start:stop]]
        release(array)
        start = stop
    return gathered


def _find_mapping(array: Any) -> mmap.mmap | None:
    """Return the mapping of which *array* is a view; None if it is not in a file."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, mmap.mmap) else None


class RowFile:
    """Rows of one shape and type, added one after another: in memory, or in a file without a name.

    The file is in the current folder, because that of temporary files may be in memory.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, on_disk: bool) -> None:
        self._file: IO[bytes] = TemporaryFile(dir=".") if on_disk else BytesIO()  # noqa: SIM115  join closes it
        self._form = shape, dtype
        self._count = 0

    def append(self, rows: np.ndarray) -> None:
        """Add *rows*, (n, …)."""
        self._file.write(rows.tobytes())
        self._count += len(rows)

    def join(self) -> np.ndarray:
        """Return all rows, (N, …); those of a file are mapped into memory."""
        shape, dtype = (self._count, *self._form[0]), self._form[1]
        if isinstance(self._file, BytesIO):
            return np.ndarray(shape, dtype, self._file.getbuffer())
        with self._file:
            self._file.flush()
            return map_file(self._file, 0, shape, dtype)


@dataclass(frozen=True)
class LazySamples:
    """The samples of a dataset, which are read when they are needed, and the results of a pass over them."""

    read: Callable[[Sequence[int]], Iterator[Mapping[str, np.ndarray]]]
    """Returns the leaves of each of some samples by their names."""
    count: int
    forms: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    """The shape and the type of each leaf of a sample."""
    hashes: np.ndarray
    """The SHA-256 of all leaves of each sample, (N, 32), uint8."""
    values: Mapping[str, np.ndarray]
    """The values of leaves of at most `SMALL_LEAF_BYTES`, (N, …)."""
    totals: Mapping[str, np.ndarray]
    """The sum of each sample, (N,), of other leaves of integers whose sums float64 has exactly."""
    limits: Mapping[str, np.ndarray]
    """The smallest and the largest value of other leaves, (2,); NaN if there is one."""

    @classmethod
    def of(cls, read: Any, count: int, forms: Mapping[str, Any]) -> Self:
        """Return the samples that *read* returns, after one pass over them."""
        values, totals, limits = {}, {}, dict[str, np.ndarray]()
        for leaf, (shape, dtype) in forms.items():
            largest_sum = math.prod(shape) * 256**dtype.itemsize
            if math.prod(shape) * dtype.itemsize <= SMALL_LEAF_BYTES:
                values[leaf] = np.empty((count, *shape), dtype)
            elif dtype.kind in "bui" and count * largest_sum <= MAX_EXACT_SUM:
                totals[leaf] = np.empty(count, np.int32 if largest_sum < 2**31 else np.int64)  # faster
        hashes = np.empty((count, 32), np.uint8)  # arrays in a list keep freed buffers in use
        for row, sample in enumerate(read(range(count))):
            hashes[row] = np.frombuffer(_hash_sample(sample), np.uint8)
            for leaf, array in sample.items():
                if leaf in values:
                    values[leaf][row] = array
                    continue
                extremes = np.array([array.min(), array.max(), *limits.get(leaf, ())])
                limits[leaf] = np.array([extremes.min(), extremes.max()])
                if leaf in totals:
                    totals[leaf][row] = array.sum(dtype=totals[leaf].dtype)
        return cls(read, count, forms, hashes, values, totals, limits)


def _hash_sample(sample: Mapping[str, np.ndarray]) -> bytes:
    digest = hashlib.sha256()
    for name, array in sorted(sample.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


@dataclass(frozen=True)
class LazyRows(FileArray):
    """A leaf of samples as an array (N, …), of which those that are requested are read."""

    samples: LazySamples
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.samples.count, *self.samples.forms[self.name][0]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self.samples.forms[self.name][1]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        if (known := self.samples.values.get(self.name)) is not None:
            return known[rows]
        chosen = np.arange(self.samples.count)[rows]
        values = np.empty((len(chosen), *self.shape[1:]), self.dtype)
        for place, sample in enumerate(self.samples.read(chosen.tolist())):
            values[place] = sample[self.name]
        return values


def target_type(dtype: np.dtype[Any], kind: LeafKind) -> np.dtype[Any]:
    """Return the type in which targets of *dtype* are stored: float32, int64, or the type of a mask."""
    if kind != "mask":
        return np.dtype(np.float32 if dtype.kind == "f" else np.int64)
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    return dtype.newbyteorder("=") if str(dtype) in MASK_TYPES else np.dtype(np.int64)


def check(arrays: Arrays, where: str) -> dict[str, tuple[Any, LeafKind]]:
    """Check *arrays*, and return the array and the kind of each leaf of inputs and targets by its name.

    *where* names the arrays in errors if they have no names of their own. Raises `DataError` if an array
    is not numeric, has a wrong shape, is empty, or has a value that cannot be stored.
    """
    leaves = flatten(arrays.inputs, "inputs") | flatten(arrays.targets, "targets")
    titles = dict(zip(("inputs", "targets"), arrays.names or (), strict=False))
    names = {name: _describe_leaf(name, titles, where) for name in leaves}
    converted = {name: _array(leaf, names[name]) for name, leaf in leaves.items()}
    first = next(iter(converted))
    for name, array in converted.items():
        if len(array) != len(converted[first]):
            raise DataError(
                f"{names[first]} and {names[name]} must have the same number of samples; "
                f"found {len(converted[first])} and {len(array)}. Remove the samples without a partner"
            )
    if unknown := sorted(set(arrays.kinds) - set(leaves)):
        raise DataError(f"{where}: kinds has {unknown[0]!r}, but the leaves are {', '.join(leaves)}")
    inputs = [array for name, array in converted.items() if is_input(name)]
    checked = {}
    for name, array in converted.items():
        beside = None if is_input(name) else inputs
        kind = arrays.kinds.get(name) or _infer_kind(array, beside)
        _check_leaf(array, kind, names[name], beside)
        checked[name] = array, kind
    return checked


def _describe_leaf(name: str, titles: Mapping[str, str], where: str) -> str:
    part, dot, rest = name.partition(".")
    return f"{titles[part]}{dot}{rest}" if part in titles else f"{where}: {name}"


def _infer_kind(array: Any, inputs: Sequence[Any] | None) -> LeafKind:
    """Return the kind of a leaf that the source does not name; *inputs* are those beside a target."""
    if inputs is None:
        return "image" if array.ndim == 4 else "number"
    if array.dtype.kind == "f":
        is_boxes = isinstance(array, Ragged) and array.values.shape[1:] == (4,)
        return "boxes" if is_boxes else "number"
    return "mask" if array.ndim == 3 and _has_pixels_of(array, inputs) else "classes"


def _has_pixels_of(array: Any, inputs: Sequence[Any]) -> bool:
    """Return whether *array*, (N, H, W), has the height and width of an image in *inputs*."""
    return any(leaf.ndim == 4 and leaf.shape[2:] == array.shape[1:] for leaf in inputs)


def _check_leaf(leaf: Any, kind: LeafKind, name: str, inputs: Sequence[Any] | None) -> None:
    """Check the values of a leaf; *inputs* are those beside it if it is a target."""
    array: Any = leaf.values if isinstance(leaf, Ragged) else leaf
    if len(array) and not isinstance(array, ImageFiles):
        _check_values(array, name)
    if kind == "boxes" and (array.shape[1:] != (4,) or array.dtype.kind != "f"):
        raise DataError(
            f"{name}: boxes must be floats (n, 4), left, top, right and bottom in pixels; found "
            f"{array.dtype} of shape (n, {', '.join(map(str, array.shape[1:]))}). Convert them"
        )
    if inputs is None or array.dtype.kind == "f" or isinstance(array, ImageFiles):
        return
    if kind == "mask":
        if not _has_pixels_of(array, inputs):
            raise DataError(
                f"{name}: masks must have the height and width of the images; found {array.shape} for "
                f"{', '.join(str(beside.shape) for beside in inputs)}. Resize them"
            )
    elif not isinstance(leaf, Ragged):
        _check_shape(array, inputs, name)
    if len(array):
        _check_classes(array, name)


def check_type(dtype: np.dtype[Any], name: str) -> None:
    """Raise `DataError` if an array of *dtype* cannot be converted to a tensor."""
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise DataError(
            f"{name} must be numbers of at most 64 bits; found {dtype}. "
            "Convert the array to float32, or to integers"
        )


def input_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which inputs of *dtype* are stored: float32 for floats, else their own type."""
    return np.dtype(np.float32) if dtype.kind == "f" else dtype.newbyteorder("=")


def row_blocks(rows: int, row_bytes: int) -> Iterator[slice]:
    """Yield slices that divide *rows* into blocks of about `BLOCK_BYTES`."""
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _array(value: Any, name: str) -> Any:
    if isinstance(value, FileArray):
        return value  # of numbers, with a row for each sample
    if isinstance(value, Ragged):
        check_type(value.dtype, name)
        return replace(value, values=np.asarray(value.values))
    if isinstance(value, np.ma.MaskedArray):
        raise DataError(f"{name} must not be a masked array; found one. Fill it or remove the masked samples")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} cannot be converted to an array: {error}") from error
    check_type(array.dtype, name)
    if not array.ndim:
        raise DataError(f"{name} must have one row per sample; found shape (). Save an array of shape (N, …)")
    if not len(array):
        raise DataError(f"{name} must have at least one sample; found shape {array.shape}. Add samples")
    if 0 in array.shape:
        raise DataError(
            f"{name} must have at least one value per sample; found shape {array.shape}. "
            "Check the axes of the array"
        )
    return array


def _check_values(array: np.ndarray, name: str) -> None:
    """Raise `DataError` if *array* has a value that is not finite, or not of its stored type."""
    if array.dtype.kind == "f" and (value := _find_first(array, _is_not_finite)):
        if value.startswith(("nan", "inf", "-inf")):
            raise DataError(f"{name} must be finite; found {value}. Correct or remove the sample")
        raise DataError(f"{name} must fit into float32; found {value}. Scale the values")
    if array.dtype.kind == "u" and array.dtype.itemsize == 8:
        value = _find_first(array, lambda block: block > np.iinfo(np.int64).max)
        if value:
            raise DataError(f"{name} must fit into int64; found {value}. Scale the values or renumber them")


def _check_shape(targets: np.ndarray, inputs: Sequence[Any], name: str) -> None:
    is_of_elements = any(targets.shape == leaf.shape[: targets.ndim] for leaf in inputs)
    if targets.ndim > 1 and (targets[0].size == 1 or not is_of_elements):
        raise DataError(
            f"{name}: class targets must have shape (N,), or the shape of the inputs for a class at each "
            f"element; found shape {targets.shape} for inputs {inputs[0].shape}. Save one integer per "
            "sample, or floats for regression"
        )


def _check_classes(targets: np.ndarray, name: str) -> None:
    ignored = IGNORED_TARGET if targets.ndim > 1 else 0
    value = _find_first(targets, lambda block: ((block < 0) & (block != ignored)) | (block >= MAX_CLASSES))
    if value:
        problem = "class targets must be non-negative"
        if not value.startswith("-"):
            problem = f"class targets must be below {MAX_CLASSES:,}"
        raise DataError(
            f"{name}: {problem}; found {value}. Number the classes from 0, or save floats for regression"
        )


def _is_not_finite(block: np.ndarray) -> np.ndarray:
    """Return whether each value is not finite in float32."""
    with np.errstate(over="ignore"):
        return ~np.isfinite(block.astype(np.float32, copy=False))


def _find_first(array: np.ndarray, is_wrong: Callable[[np.ndarray], np.ndarray]) -> str | None:
    """Return the first wrong value of *array* and its sample as text, or None if every value is right."""
    limits = array.samples.limits.get(array.name) if isinstance(array, LazyRows) else None
    if limits is not None and IGNORED_TARGET not in limits and not is_wrong(limits).any():
        return None
    for rows in row_blocks(len(array), array.nbytes // len(array)):
        block = array[rows]
        wrong = is_wrong(block)
        release(array)
        if wrong.any():
            place = np.unravel_index(wrong.argmax(), wrong.shape)
            return f"{block[place]} in sample {rows.start + place[0]}"
    return None
