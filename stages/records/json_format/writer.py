"""JSON as serde_json writes it, compact or pretty, in pieces: bytes are lists of numbers from 0 to 255."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from stages.contracts.errors import RecordError
from stages.records.json_format.reader import MAX_SIZE, MAX_TEXT, MIXED, SHORT, are_alike, to_array
from stages.records.record_tree import RawTensor, Tree

MAX_DEPTH = 128
INDENT = 2
_CHUNK = 1 << 16
"""Bytes of a tensor that become text at once."""


@dataclass(frozen=True)
class _Pieces:
    """A tensor's bytes, not yet text."""

    pieces: Iterable[memoryview]


def encode(node: Tree) -> Iterator[bytes]:
    """Yield the text of *node* without any space, as serde_json's ``to_writer``."""
    yield from _readable(_node(node, -1, "the root"))


def encode_pretty(node: Tree) -> Iterator[bytes]:
    """Yield the text of *node* with an element on each line, as serde_json's ``to_writer_pretty``."""
    yield from _readable(_node(node, 0, "the root"))


def _readable(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield *pieces*. Raises `RecordError` if they are longer than a record in JSON may be."""
    size = 0
    for piece in pieces:
        size += len(piece)
        if size >= MAX_SIZE:
            raise RecordError(
                f"the record takes more than {MAX_SIZE} bytes of JSON, which could not be read back: use a "
                "binary format"
            )
        yield piece


def _node(node: Tree, level: int, path: str) -> Iterator[bytes]:
    """*node* as text. *level* is how deep its lines are indented; below 0 there are none."""
    if isinstance(node, RawTensor):
        node = {"bytes": _Pieces(node.pieces()), "shape": list(node.shape), "dtype": node.dtype}
    if isinstance(node, dict):
        yield from _map(node, level, path)
    elif isinstance(node, bytes | bytearray | memoryview) or _is_blob(node):
        yield from _bytes([memoryview(node)], level)
    elif isinstance(node, _Pieces):
        yield from _bytes(node.pieces, level)
    elif isinstance(node, tuple) and not node:
        yield b"null"  # a struct with nothing in it
    elif isinstance(node, list | tuple):
        yield from _list(node, level, path)
    elif isinstance(node, np.ndarray):
        yield from _list(node.tolist(), level, path)
    else:
        yield _scalar(node, path)


def _map(node: dict[str, Tree], level: int, path: str) -> Iterator[bytes]:
    inner = _deeper(level, path)
    colon = b":" if level < 0 else b": "
    opening = b"{"
    for key, value in node.items():
        if not isinstance(key, str):
            raise RecordError(
                f"{path}: key {key!r} is no text but a {type(key).__name__}, and could not be read back: use "
                f"{str(key)!r}"
            )
        yield opening + _line(inner) + _text(key, path) + colon
        yield from _node(value, inner, f"{path}.{key}")
        opening = b","
    yield _line(level) + b"}" if node else b"{}"


def _list(node: list[Tree] | tuple[Tree, ...], level: int, path: str) -> Iterator[bytes]:
    inner = _deeper(level, path)
    if len(node) > SHORT:
        _check_long(node, path)
    opening = b"["
    for index, value in enumerate(node):
        yield opening + _line(inner)
        yield from _node(value, inner, f"{path}.{index}")
        opening = b","
    yield _line(level) + b"]" if node else b"[]"


def _check_long(node: list[Tree] | tuple[Tree, ...], path: str) -> None:
    """Raise `RecordError` for a long list of numbers that a reader could not put into an array."""
    if not all(value is None or isinstance(value, int | float) for value in node):
        return
    values = [None if isinstance(value, float) and not math.isfinite(value) else value for value in node]
    try:
        if are_alike(values):
            to_array(values)
        elif len(node) > MIXED:
            raise ValueError(f"{len(node)} values that are not all finite numbers or all bools")
    except ValueError as error:
        raise RecordError(
            f"{path} could not be read back from JSON: {error}: record it as a tensor"
        ) from error


def _bytes(pieces: Iterable[memoryview], level: int) -> Iterator[bytes]:
    """An array of the numbers in *pieces*, through a table of every number's text."""
    inner = level if level < 0 else level + 1
    texts = [b"," + _line(inner) + str(byte).encode() for byte in range(256)]
    width = max(map(len, texts))
    table = np.frombuffer(b"".join(text.ljust(width) for text in texts), np.uint8).reshape(256, width)
    used = np.arange(width) < np.array([len(text) for text in texts])[:, None]
    first = True
    for piece in pieces:
        data = np.frombuffer(piece, np.uint8)
        for start in range(0, len(data), _CHUNK):
            chunk = data[start : start + _CHUNK]
            text = table[chunk][used[chunk]].tobytes()
            yield b"[" + text[1:] if first else text
            first = False
    yield b"[]" if first else _line(level) + b"]"


def _line(level: int) -> bytes:
    """What stands before an element at *level*."""
    return b"" if level < 0 else b"\n" + b" " * (INDENT * level)


def _deeper(level: int, path: str) -> int:
    if path.count(".") > MAX_DEPTH:
        raise RecordError(f"{path[:200]}: goes down more than {MAX_DEPTH} levels, and could not be read back")
    return level if level < 0 else level + 1


def _scalar(node: Tree, path: str) -> bytes:
    if node is None:
        return b"null"
    if isinstance(node, bool):
        return b"true" if node else b"false"
    if isinstance(node, int):
        return str(int(node)).encode()
    if isinstance(node, float):
        return _float(node).encode()
    if isinstance(node, str):
        return _text(node, path)
    raise RecordError(
        f"{path}: a {type(node).__name__} cannot be recorded: only tensors, numbers, text, bytes, "
        "lists and dicts can (nothing that would need code to be read)"
    )


def _text(node: str, path: str) -> bytes:
    try:
        text = json.dumps(node, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"{path}: {node!r:.200} has half a character and is no text: {error}") from error
    if len(text) > MAX_TEXT:
        raise RecordError(
            f"{path}: a text of {len(text)} bytes could not be read back from JSON, which may have {MAX_TEXT}"
        )
    return text


def _float(value: float) -> str:
    """The shortest digits that give *value* back, with an exponent below 1e-5 and from 1e16 on."""
    if not math.isfinite(value):
        return "null"
    mantissa, exponent = f"{value!r}e0".split("e")[:2]
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits.strip("0"):
        return f"{sign}0.0"
    point = len(whole) + int(exponent) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if -5 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if 0 < point <= 16:
        return f"{sign}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"
    return f"{sign}{digits[0]}{'.' * (len(digits) > 1)}{digits[1:]}e{point - 1}"


def _is_blob(node: Tree) -> bool:
    return isinstance(node, np.ndarray) and node.dtype == np.uint8
