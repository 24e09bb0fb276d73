"""JSON writer: text as serde_json writes it, compact or indented, in pieces.

Bytes are written as lists of numbers from 0 to 255.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from stages.contracts.errors import RecordError
from stages.records.byte_readers import rechunk
from stages.records.json_format.reader import (
    MAX_LIST,
    MAX_SIZE,
    MAX_TEXT,
)
from stages.records.limits import MAX_DEPTH
from stages.records.number_arrays import to_array
from stages.records.record_tree import RawTensor, Tree

INDENT = 2
_CHUNK = 1 << 16
"""Bytes of a tensor that are converted to text at a time."""


@dataclass(frozen=True)
class _TensorBytes:
    """The bytes of a tensor, not converted to text yet."""

    pieces: Iterable[memoryview]


def encode(node: Tree) -> Iterator[bytes]:
    """Yield the text of *node* without whitespace, as serde_json's ``to_writer``."""
    yield from _check_size(_encode(node, -1, "the root"))


def encode_pretty(node: Tree) -> Iterator[bytes]:
    """Yield the text of *node* with one element per line, as serde_json's ``to_writer_pretty``."""
    yield from _check_size(_encode(node, 0, "the root"))


def _check_size(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield *pieces*. Raises `RecordError` if they are longer than a JSON record may be."""
    size = 0
    for piece in pieces:
        size += len(piece)
        if size >= MAX_SIZE:
            raise RecordError(
                f"the record takes more than {MAX_SIZE} bytes of JSON, which could not be read back; use a "
                "binary format"
            )
        yield piece


def _encode(node: Tree, level: int, path: str) -> Iterator[bytes]:
    """Yield *node* as text; *level* is the depth of its indentation, negative for none."""
    if isinstance(node, RawTensor):
        node = {"bytes": _TensorBytes(node.pieces()), "shape": list(node.shape), "dtype": node.dtype}
    if isinstance(node, dict):
        yield from _encode_map(node, level, path)
    elif isinstance(node, bytes | bytearray | memoryview):
        yield from _encode_bytes([memoryview(node)], level)
    elif isinstance(node, _TensorBytes):
        yield from _encode_bytes(node.pieces, level)
    elif isinstance(node, tuple) and not node:
        yield b"null"  # an empty struct
    elif isinstance(node, list | tuple):
        yield from _encode_list(node, level, path)
    else:
        yield _encode_scalar(node, path)


def _encode_map(node: dict[str, Tree], level: int, path: str) -> Iterator[bytes]:
    inner = _next_level(level, path)
    colon = b":" if level < 0 else b": "
    opening = b"{"
    for key, value in node.items():
        if not isinstance(key, str):
            raise RecordError(
                f"{path} has the key {key!r} of type {type(key).__name__}, which could not be read back; use "
                f"the text {str(key)!r}"
            )
        yield opening + _line_break(inner) + _encode_text(key, path) + colon
        yield from _encode(value, inner, f"{path}.{key}")
        opening = b","
    yield _line_break(level) + b"}" if node else b"{}"


def _encode_list(node: list[Tree] | tuple[Tree, ...], level: int, path: str) -> Iterator[bytes]:
    inner = _next_level(level, path)
    if len(node) > MAX_LIST:
        _check_long_list(node, path)
    opening = b"["
    for index, value in enumerate(node):
        yield opening + _line_break(inner)
        yield from _encode(value, inner, f"{path}.{index}")
        opening = b","
    yield _line_break(level) + b"]" if node else b"[]"


def _check_long_list(node: list[Tree] | tuple[Tree, ...], path: str) -> None:
    """Raise `RecordError` for a long list of numbers that a reader could not put into an array."""
    if not all(value is None or isinstance(value, int | float) for value in node):
        return
    values = [None if isinstance(value, float) and not math.isfinite(value) else value for value in node]
    try:
        to_array(values)
    except ValueError as error:
        raise RecordError(
            f"{path} could not be read back from JSON: {error}; record it as a tensor"
        ) from error


def _encode_bytes(pieces: Iterable[memoryview], level: int) -> Iterator[bytes]:
    """Yield a list of the bytes in *pieces* as numbers."""
    inner = level if level < 0 else level + 1
    texts = [b"," + _line_break(inner) + str(byte).encode() for byte in range(256)]
    first = True
    for block in rechunk(pieces, _CHUNK):
        text = b"".join(map(texts.__getitem__, block))
        yield b"[" + text[1:] if first else text
        first = False
    yield b"[]" if first else _line_break(level) + b"]"


def _line_break(level: int) -> bytes:
    """Return the line break and indentation before an element at *level*."""
    return b"" if level < 0 else b"\n" + b" " * (INDENT * level)


def _next_level(level: int, path: str) -> int:
    if path.count(".") > MAX_DEPTH:
        raise RecordError(f"{path[:200]} is nested deeper than {MAX_DEPTH} levels and could not be read back")
    return level if level < 0 else level + 1


def _encode_scalar(node: Tree, path: str) -> bytes:
    if node is None:
        return b"null"
    if isinstance(node, bool):
        return b"true" if node else b"false"
    if isinstance(node, int):
        return str(int(node)).encode()
    if isinstance(node, float):
        return _format_float(node).encode()
    if isinstance(node, str):
        return _encode_text(node, path)
    raise RecordError(
        f"{path} is a {type(node).__name__} and cannot be recorded; use tensors, numbers, text, bytes, "
        "lists and dicts, which can be read without running code"
    )


def _encode_text(node: str, path: str) -> bytes:
    try:
        text = json.dumps(node, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RecordError(
            f"{path}: {node!r:.200} has an unpaired surrogate and is not text: {error}"
        ) from error
    if len(text) > MAX_TEXT:
        raise RecordError(
            f"{path}: a text of {len(text)} bytes could not be read back from JSON; at most {MAX_TEXT} are "
            "allowed"
        )
    return text


def _format_float(value: float) -> str:
    """Return the shortest digits that restore *value*, with an exponent below 1e-5 and from 1e16."""
    if not math.isfinite(value):
        return "null"
    if value == 0 or 1e-5 <= abs(value) < 1e16:
        return np.format_float_positional(value, trim="0")
    return np.format_float_scientific(value, trim="-", exp_digits=1).replace("e+", "e")
