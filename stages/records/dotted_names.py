"""Dotted names of the nodes of trees, for burnpack and safetensors, and the ids of parameters.

An id is the text by which a Burn record associates optimizer state with a parameter. Since 0.15 it is a
number of 64 bits, written as its 8 little-endian bytes in base32 (digits, then a to v; 13 characters). Burn
0.14 wrote 6 bytes (10 characters); 0.13 and earlier wrote a UUID.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from uuid import UUID

from stages.contracts.errors import RecordError
from stages.records.limits import MAX_DEPTH
from stages.records.record_tree import RawTensor, Tree, fields_of, iter_leaves, unwrap

MAX_ENTRIES = 50_000
"""Tensors, scalars or texts in one file; each takes memory, however few bytes of the file it takes."""
MAX_BRANCHES = 100_000
"""Inner nodes of the tree that the names of a file describe; short names could request much memory."""


def is_parameter(node: Tree) -> bool:
    """Return True if *node* is the record of a parameter: a tensor with its id."""
    return (
        isinstance(node, dict)
        and node.keys() == {"id", "param"}
        and isinstance(node["id"], str)
        and isinstance(node["param"], RawTensor)
    )


def flatten(node: Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Tree]]:
    """Yield the leaves of *node* with their dotted names, in order; nil and () are omitted.

    A parameter is one leaf; a *node* that is a number has an empty name. Raises `RecordError` if a name could
    not be split again.
    """
    node = unwrap(node)
    if isinstance(node, dict | list | tuple) and not is_parameter(node):
        for key, value in fields_of(node):
            yield from flatten(value, extend_path(path, key))
    elif not path and isinstance(node, bool | int | float):
        yield "", node
    elif node is not None:
        yield join_path(path), node


def param_ids(node: Tree) -> dict[str, str]:
    """Return the id of each parameter of *node*, the record of a model, by its path."""
    leaves = ((path.rpartition("."), leaf) for path, leaf in iter_leaves(node))
    return {path: leaf for (path, _, key), leaf in leaves if key == "id" and isinstance(leaf, str)}


def has_derived_ids(node: Tree) -> bool | None:
    """Return whether the ids of *node*, the record of a model, are derived from its paths, as ours are.

    Burn's are random. None if it has no ids.
    """
    ids = param_ids(node)
    return all(key == derive_param_id(name) for name, key in ids.items()) if ids else None


def extend_path(path: tuple[str, ...], key: Tree) -> tuple[str, ...]:
    """Return *path* extended by *key*. Raises `RecordError` if it is too deep or *key* is not text."""
    if len(path) >= MAX_DEPTH:
        raise RecordError(f"the record is nested deeper than {MAX_DEPTH} levels at {'.'.join(path[:4])}…")
    if not isinstance(key, str):
        raise RecordError(f"the record has the key {key!r} at {'.'.join(path)!r}; keys must be text")
    return (*path, check_text(key, "the record"))


def join_path(path: tuple[str, ...]) -> str:
    """Return *path* as one dotted name. Raises `RecordError` if a part is empty or has a dot or a NUL."""
    if not path or any("." in part for part in path):
        raise RecordError(
            f"the value at {list(path)} in the record cannot be named: each part of its path must be text "
            "without a dot"
        )
    return check_name(".".join(path), "the record")


def describe_path(path: tuple[str, ...]) -> str:
    """Return *path* for a message; for the empty path, that of the record's item, ``the item``."""
    return ".".join(path) or "the item"


def check_name(name: str, where: str) -> str:
    """Return *name*. Raises `RecordError` if a part is empty, or if *name* has a NUL or invalid Unicode."""
    parts = name.split(".")
    shown = repr(name if len(name) < 100 else name[:100] + "…")
    if not all(parts) or "\0" in name:
        raise RecordError(f"{where} has the name {shown}; its parts between dots must be text without a NUL")
    if len(parts) > MAX_DEPTH:
        raise RecordError(
            f"{where} has the name {shown} with {len(parts)} parts, but at most {MAX_DEPTH} are supported"
        )
    return check_text(name, where)


def check_text(text: str, where: str) -> str:
    """Return *text*. Raises `RecordError` if it has an unpaired surrogate and cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"{where} has the text {text[:100]!r}, which is not valid Unicode") from error
    return text


def unflatten(leaves: Mapping[str, Tree], where: str) -> Tree:
    """Return the tree with *leaves*, by dotted name; a node whose keys are 0…n-1 becomes a list."""
    if leaves.keys() == {""} and isinstance(leaves[""], bool | int | float | None):
        return leaves[""]
    root: dict[str, Tree] = {}
    branches = {id(root)}  # a leaf can be a dict too: a parameter
    for name, leaf in leaves.items():
        *stem, last = check_name(name, where).split(".")
        node = root
        for part in stem:
            if part not in node:
                node[part] = {}
                branches.add(id(node[part]))
            node = node[part]
            if id(node) not in branches:
                raise _name_conflict(name, where)
        if last in node:
            raise _name_conflict(name, where)
        node[last] = leaf
        if len(branches) > MAX_BRANCHES:
            raise RecordError(f"{where} has names that describe a tree of more than {MAX_BRANCHES} nodes")
    return _convert_lists(root, branches)


def _name_conflict(name: str, where: str) -> RecordError:
    return RecordError(
        f"{where} has a value at {name!r} and another above or below it; only one of them can exist"
    )


def _convert_lists(node: Tree, branches: set[int]) -> Tree:
    """Replace each branch whose keys are 0…n-1 by a list."""
    if id(node) not in branches:
        return node
    for key in node:
        node[key] = _convert_lists(node[key], branches)
    if "0" not in node:
        return node
    indices = [str(index) for index in range(len(node))]
    return [node[index] for index in indices] if node.keys() == set(indices) else node


_BASE32 = re.compile(r"[0-9a-vA-V]*")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-?)[0-9a-fA-F]{4}\1[0-9a-fA-F]{4}\1[0-9a-fA-F]{4}\1[0-9a-fA-F]{12}")
_NUMBER_BYTES = 8


def derive_param_id(path: str) -> str:
    """Return the id of the parameter at the dotted *path*: the same in every run and every epoch."""
    return encode_param_id(_hash_bytes(path.encode()))


def encode_param_id(number: int) -> str:
    """Return the 13 characters for *number*, 0 to 2**64 - 1."""
    text = base64.b32hexencode(number.to_bytes(_NUMBER_BYTES, "little"))
    return text.decode().rstrip("=").lower()


def decode_param_id(text: str) -> int:
    """Return the number that the id *text* represents, as Burn 0.15 and later read it.

    A UUID is hashed to 64 bits. Burn's own hash of a UUID differs between builds and no file depends on it,
    so any hash that keeps different ids different is correct. Raises `RecordError` if *text* is not an id.
    """
    data = _decode_base32(text)
    if data is not None and len(data) <= _NUMBER_BYTES:
        return int.from_bytes(data, "little")
    if _UUID.fullmatch(text):
        return _hash_bytes(UUID(text).bytes)
    raise RecordError(
        f"{text!r} is not a parameter id: expected 13 characters (Burn 0.15 and later) or 10 (0.14), each a "
        "digit or a letter from a to v, or a UUID (0.13 and earlier)"
    )


def _decode_base32(text: str) -> bytes | None:
    """Return the bytes that *text* encodes, or None if it is not a valid encoding."""
    if not _BASE32.fullmatch(text):
        return None
    try:
        data = base64.b32hexdecode(text.upper() + "=" * (-len(text) % 8))
    except binascii.Error:
        return None
    # Bits beyond the last byte must be zero; otherwise two texts would encode one id.
    return data if base64.b32hexencode(data).decode().rstrip("=") == text.upper() else None


def _hash_bytes(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:_NUMBER_BYTES], "little")
