"""Conversion between trees and dotted names, for burnpack and safetensors, which store tensors by name."""

from collections.abc import Iterator, Mapping

from stages.contracts.errors import RecordError
from stages.records.limits import MAX_DEPTH
from stages.records.record_tree import RawTensor, Some, Tree, Variant

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
    node = node.value if isinstance(node, Some) else node
    if isinstance(node, Variant):
        node = {node.name: node.value}
    if isinstance(node, dict) and not is_parameter(node):
        for key, value in node.items():
            yield from flatten(value, extend_path(path, key))
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            yield from flatten(value, extend_path(path, str(index)))
    elif not path and isinstance(node, bool | int | float):
        yield "", node
    elif node is not None:
        yield join_path(path), node


def extend_path(path: tuple[str, ...], key: Tree) -> tuple[str, ...]:
    """Return *path* extended by *key*. Raises `RecordError` if it is too deep or *key* is not text."""
    if len(path) >= MAX_DEPTH:
        raise RecordError(f"the record is nested deeper than {MAX_DEPTH} levels at {'.'.join(path[:4])}…")
    if not isinstance(key, str):
        raise RecordError(f"the record has the key {key!r} at {'.'.join(path)!r}; keys must be text")
    return (*path, key)


def join_path(path: tuple[str, ...]) -> str:
    """Return *path* as one dotted name. Raises `RecordError` if a part is empty or has a dot or a NUL."""
    if not path or any("." in part for part in path):
        raise RecordError(
            f"the value at {list(path)} in the record cannot be named: each part of its path must be text "
            "without a dot"
        )
    return check_name(".".join(path), "the record")


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
    return _to_list(node) if _is_list(node) else node


def _is_list(node: dict[str, Tree]) -> bool:
    return bool(node) and "0" in node and all(str(index) in node for index in range(len(node)))


def _to_list(node: dict[str, Tree]) -> list[Tree]:
    return [node[str(index)] for index in range(len(node))]
