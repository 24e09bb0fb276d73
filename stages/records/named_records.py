"""Records in MessagePack and JSON from Burn 0.9 to 0.21: metadata beside the item, and the tensors in it.

Since 0.14 a tensor is a map of ``bytes``, ``shape`` and ``dtype``; the dtype of a bool became a map in 0.21.
Until 0.13 a tensor was a map of ``value``, a list of numbers, and ``shape``. Floats were written as numbers
and half floats as their bits; only the metadata declared the type of the numbers.
"""

import math
import re
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.contracts.errors import RecordError
from stages.records.byte_readers import Skipped
from stages.records.dotted_names import check_text, describe_path, extend_path
from stages.records.limits import ADVICE, LEAST_NUMBERS
from stages.records.precision import Precision
from stages.records.record_tree import (
    BOOL_STORES,
    INTEGERS,
    ITEM_SIZES,
    MAX_DIMENSIONS,
    NUMPY,
    RUST_TYPES,
    Metadata,
    RawTensor,
    Record,
    Signed,
    Tree,
    unwrap,
)
from stages.records.tensor_data import are_sizes, build_tensor, check_shape, to_array

Array = NDArray[Any]

DATA_KEYS = {"bytes", "shape", "dtype"}
"""The keys of a tensor's map."""
_VALUE_KEYS = {"value", "shape"}
_HALVES = {"f16", "bf16"}
"""Types written as their bits, as unsigned integers of 16 bits."""
_SINCE_BYTES = re.compile(r"0\.(1[5-9]|[2-9]\d)\.|[1-9]")
"""Versions that never wrote ``value``; builds that declared 0.14.0 before its release did."""
_SINCE_BOOL_STORE = re.compile(r"0\.(2[1-9]|[3-9]\d)\.|[1-9]")
"""Versions that name the storage of a Bool, and that do not load one without."""


class _TensorRestorer:
    """Converts the nodes of one tree, as a MessagePack or JSON reader produced it.

    There is a `RawTensor` for every tensor map. Numbers that a reader put into an array, and that are not a
    tensor's, become a list again; a blob becomes bytes. Raises `RecordError` with the dotted path for an
    inconsistent tensor, an invalid name, or more than *max_numbers* numbers in lists.
    """

    def __init__(self, metadata: Metadata, source_name: str, max_numbers: int) -> None:
        self._metadata = metadata
        self._source_name = source_name
        self._numbers = 0
        self._max_numbers = max_numbers
        self._has_values = not _SINCE_BYTES.match(metadata.version)

    def convert(self, node: Tree, path: tuple[str, ...]) -> Tree:
        if isinstance(node, dict):
            if _is_data_tensor(node):
                return self._data_tensor(node, path)
            if self._has_values and _is_value_tensor(node):
                return self._value_tensor(node, path)
            return {
                self._check_key(key, path): self.convert(value, (*path, key)) for key, value in node.items()
            }
        if isinstance(node, list | tuple):
            return [self.convert(value, (*path, str(index))) for index, value in enumerate(node)]
        if isinstance(node, np.ndarray):
            return node.tobytes() if node.dtype == np.uint8 else self._to_list(node, path)
        return node

    def _to_list(self, numbers: NDArray[Any], path: tuple[str, ...]) -> list[Any]:
        self._numbers += numbers.size
        if self._numbers > self._max_numbers:
            raise self._error(
                path, f"lists outside tensors have more than {self._max_numbers} numbers; {ADVICE}"
            )
        converted: list[Any] = numbers.tolist()
        return converted

    def _data_tensor(self, node: dict[str, Tree], path: tuple[str, ...]) -> RawTensor:
        """Return the tensor of a map of 0.14 or later."""
        shape = self._shape(node["shape"], path)
        dtype, width = self._dtype(node["dtype"], path)
        data = node["bytes"]
        blob = data if isinstance(data, Skipped) else self._blob(data, path)
        return build_tensor(dtype, shape, blob, width=width, where=self._where(path))

    def _value_tensor(self, node: dict[str, Tree], path: tuple[str, ...]) -> RawTensor:
        """Return the tensor of a map of 0.13 or earlier."""
        shape = self._shape(node["shape"], path)
        try:
            dtype, values = decode_values(node["value"], self._metadata)
        except RecordError as error:
            raise self._error(path, str(error)) from error
        if len(values) != math.prod(shape):
            raise self._error(
                path, f"has {len(values)} values, expected {math.prod(shape)} for shape {list(shape)}"
            )
        return RawTensor.of(dtype, shape, values.view(np.uint8))

    def _shape(self, node: Tree, path: tuple[str, ...]) -> tuple[int, ...]:
        if not _is_list(node) or len(node) > MAX_DIMENSIONS:
            raise self._error(path, f"its shape must be a list of at most {MAX_DIMENSIONS} sizes")
        shape = tuple(node.tolist() if isinstance(node, np.ndarray) else node)
        if not are_sizes(shape):
            raise self._error(path, f"its shape must be non-negative integers, found {list(shape)!s:.200}")
        check_shape(shape, self._where(path))
        return shape

    def _dtype(self, node: Tree, path: tuple[str, ...]) -> tuple[str, int]:
        """Return the dtype's name and the bytes of one element in the file."""
        if isinstance(node, dict) and len(node) == 1:
            name, variant = next(iter(node.items()))
            if name == "QFloat":
                raise self._error(
                    path,
                    f"is quantized ({variant!s:.200}), which only Burn can read; dequantize it in Burn first",
                )
            if name == "Bool" and isinstance(variant, str) and variant in BOOL_STORES:
                return "Bool", BOOL_STORES[variant]
        if isinstance(node, str) and node in ITEM_SIZES:
            return ("F32" if node == "Flex32" else node), ITEM_SIZES[node]
        raise self._error(path, f"its dtype must be one of {', '.join(ITEM_SIZES)}, found {node!s:.200}")

    def _blob(self, data: Tree, path: tuple[str, ...]) -> NDArray[Any]:
        """Return *data*, a blob or a list of numbers from 0 to 255, as an array of bytes."""
        if isinstance(data, np.ndarray) and data.dtype == np.uint8:
            return data
        if isinstance(data, list) and all(type(byte) is int and 0 <= byte < 256 for byte in data):
            return np.array(data, np.uint8)
        if isinstance(data, np.ndarray) and data.dtype.kind in "iu" and not ((data < 0) | (data > 255)).any():
            return data.astype(np.uint8)
        raise self._error(path, "its bytes must be binary or a list of numbers from 0 to 255")

    def _check_key(self, key: Tree, path: tuple[str, ...]) -> str:
        if not isinstance(key, str) or "\0" in key or ".." in key:
            raise self._error(path, f"has the name {key!r:.200}; a name must be text without NUL and '..'")
        return key

    def _error(self, path: tuple[str, ...], what: str) -> RecordError:
        return RecordError(f"{self._where(path)} {what}")

    def _where(self, path: tuple[str, ...]) -> str:
        return f"{self._source_name}, {describe_path(path)}:"


def _is_data_tensor(node: dict[str, Tree]) -> bool:
    """Return True if a map is a tensor of 0.14 or later, and not a struct with fields of these names."""
    return node.keys() == DATA_KEYS and not (_is_field(node["bytes"]) or _is_field(node["shape"]))


def _is_field(node: Tree) -> bool:
    """Return True if *node* is a part of a record that neither the bytes nor the sizes of a tensor can be."""
    if isinstance(node, list):
        return any(isinstance(item, dict | list | str | None) for item in node)
    return isinstance(node, dict | None)


def _is_value_tensor(node: dict[str, Tree]) -> bool:
    """Return True if a map is a tensor of 0.13 or earlier, and not a struct with fields of these names."""
    return (
        node.keys() == _VALUE_KEYS
        and _is_list(node["value"])
        and _is_list(node["shape"])
        and all(isinstance(length, int | np.integer) for length in node["shape"])
    )


def _is_list(node: Tree) -> bool:
    return isinstance(node, list | np.ndarray)


def decode_values(values: Tree, metadata: Metadata) -> tuple[str, Array]:
    """Return the dtype of *values* (a list or an array) and their elements, little-endian as in a file.

    If half floats are written as integers, an integer tensor looks the same, unless one element is negative.
    Such records almost always contain floats, so the values are read as floats. Raises `RecordError`, without
    a path.
    """
    array = values if isinstance(values, np.ndarray) else _list_to_array(values)
    float_type = metadata.float.rsplit("::", 1)[-1]
    if array.dtype == np.bool_:
        return "Bool", array.astype(np.uint8)
    if array.dtype.kind != "f":
        if float_type in _HALVES and array.min() >= 0:
            return RUST_TYPES[float_type], _to_integers(array, "u16")
        if (dtype := RUST_TYPES.get(metadata.int)) in INTEGERS:
            return dtype, _to_integers(array, metadata.int)
        raise RecordError(
            f"its values are integers, but the metadata declares integers as {metadata.int!r:.200}"
        )
    if float_type in {"f32", "f64"}:
        with np.errstate(over="ignore"):
            return RUST_TYPES[float_type], array.astype(NUMPY[RUST_TYPES[float_type]])
    if float_type in _HALVES and not len(array):
        return RUST_TYPES[float_type], np.empty(0, "<u2")
    raise RecordError(f"its values are floats, but the metadata declares floats as {metadata.float!r:.200}")


def _list_to_array(values: list[Any]) -> Array:
    try:
        return to_array(values) if values else np.empty(0)
    except ValueError as error:
        raise RecordError(
            f"its values must be numbers: {error} (JSON writes NaN and infinity as null, which Burn cannot "
            "read either)"
        ) from error


def _to_integers(values: Array, name: str) -> Array:
    limits = np.iinfo(NUMPY[name.upper()])
    low, high = int(values.min()), int(values.max())
    if low < limits.min or high > limits.max:
        raise RecordError(f"its values range from {low} to {high}, which does not fit the metadata's {name}")
    return values.astype(NUMPY[name.upper()])


BURN_VERSION = "0.21.0"
"""Version of Burn that written files declare: the newest that reads and writes these formats."""

MAX_VALUE_SIZE = 1 << 32
"""Bytes of one value, which must have fewer: MessagePack cannot encode a longer length."""
UNIT: tuple[()] = ()
"""Burn's ``_b``, an empty struct: an empty array in MessagePack, null in JSON."""


def build_metadata(recorder: str, precision: Precision) -> Metadata:
    """Return the metadata of Burn's *recorder* (a type name such as ``NamedMpkGzFileRecorder``)."""
    settings = f"burn_core::record::settings::{precision.settings}"
    return Metadata(
        float=precision.float_type,
        int=precision.int_type,
        format=f"burn_core::record::file::{recorder}<{settings}>",
        version=BURN_VERSION,
        settings=precision.settings,
    )


def pack_record(record: Record) -> Tree:
    """Return the tree of a MessagePack or JSON file for *record*, with Burn's keys in Burn's order.

    ``_b`` is included because Burn 0.12 to 0.21 require it; earlier versions ignore it. Raises `RecordError`
    if *record* has no metadata.
    """
    if record.metadata is None:
        raise RecordError(
            "a record without metadata cannot be written as MessagePack or JSON; set its metadata with "
            "build_metadata(), or use burnpack or safetensors"
        )
    names_store = _SINCE_BOOL_STORE.match(record.metadata.version)
    dtypes = {name: name for name in ITEM_SIZES} | ({"Bool": {"Bool": "Native"}} if names_store else {})
    return {
        "metadata": asdict(record.metadata),
        "item": _to_plain(record.item, ("item",), dtypes),
        "_b": UNIT,
    }


def _to_plain(node: Tree, path: tuple[str, ...], dtypes: dict[str, Tree]) -> Tree:
    """Return *node* without type hints, and with a map for each tensor, whose dtype is in *dtypes*.

    Raises `RecordError`, with the path, for a value that could not be read back.
    """
    node = unwrap(node)
    if isinstance(node, RawTensor):
        return _tensor_map(node, path, dtypes)
    if isinstance(node, dict):
        return {key: _to_plain(value, extend_path(path, key), dtypes) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_to_plain(value, extend_path(path, str(i)), dtypes) for i, value in enumerate(node)]
    if isinstance(node, str):
        return check_text(node, describe_path(path))
    if not isinstance(node, int | float | bytes | bytearray | memoryview | None) or isinstance(
        node, np.generic
    ):
        raise RecordError(
            f"{describe_path(path)} is a {type(node).__module__}.{type(node).__name__} and cannot be "
            "recorded; use tensors, numbers, text, bytes, lists and dicts, which can be read without running "
            "code"
        )
    if isinstance(node, int) and not -(1 << 63) <= node < 1 << 64:
        raise RecordError(f"{describe_path(path)} is {node}, which does not fit into 64 bits")
    return int(node) if isinstance(node, Signed) else node


def _tensor_map(tensor: RawTensor, path: tuple[str, ...], dtypes: dict[str, Tree]) -> dict[str, Tree]:
    if tensor.dtype not in dtypes:
        raise RecordError(
            f"{describe_path(path)} is a tensor of the unsupported dtype {tensor.dtype!r}; use one of "
            f"{', '.join(dtypes)}"
        )
    if tensor.nbytes >= MAX_VALUE_SIZE:
        raise RecordError(
            f"{describe_path(path)} has {tensor.nbytes} bytes, but a value in MessagePack and JSON is "
            "limited to 4 GiB; save it as safetensors or burnpack"
        )
    return {"bytes": tensor, "shape": list(tensor.shape), "dtype": dtypes[tensor.dtype]}


def unpack_record(tree: Tree, source_name: str, *, max_numbers: int = LEAST_NUMBERS) -> Record:
    """Return the record in *tree*, the content of a file that any Burn from 0.9 to 0.21 wrote.

    Its tensors become `RawTensor`. Lists outside tensors may have *max_numbers* numbers. Unknown keys are
    ignored. *source_name* names the file in errors. Raises `RecordError` if *tree* is not a record.
    """
    if not isinstance(tree, dict) or not {"metadata", "item"} <= tree.keys():
        content = f"keys {sorted(tree)[:8]}" if isinstance(tree, dict) else f"a {type(tree).__name__}"
        raise RecordError(
            f"{source_name} is not a Burn record: expected the keys 'metadata' and 'item', found {content}"
        )
    marker = tree.get("_b")
    if not (marker is None or (isinstance(marker, list | tuple) and not marker)):
        raise RecordError(
            f"{source_name}, _b: expected an empty array or nil, found a {type(marker).__name__}"
        )
    metadata = _read_metadata(tree["metadata"], source_name)
    restorer = _TensorRestorer(metadata, source_name, max_numbers)
    return Record(restorer.convert(tree["item"], ()), metadata)


def _read_metadata(node: Tree, source_name: str) -> Metadata:
    if not isinstance(node, dict):
        raise RecordError(f"{source_name}, metadata: expected a map, found a {type(node).__name__}")
    texts = {field.name: node.get(field.name) for field in fields(Metadata)}
    wrong = [name for name, text in texts.items() if not isinstance(text, str)]
    if wrong:
        raise RecordError(
            f"{source_name}, metadata: {', '.join(wrong)} must be text; Burn requires all of "
            f"{', '.join(texts)}, found {sorted(node)[:8]}"
        )
    return Metadata(**{name: str(text) for name, text in texts.items()})
