"""Trees as dotted names and back, for the formats that have no other: burnpack and safetensors."""

from collections.abc import Iterator, Mapping

from stages.contracts.errors import RecordError
from stages.records.record_tree import RawTensor, Some, Tree, Variant

MAX_DEPTH = 128
"""Of a tree, and of the components of a name."""
MAX_ENTRIES = 50_000
"""Tensors, scalars or texts in one file: each takes memory, however few bytes of the file it takes."""
MAX_BRANCHES = 100_000
"""Inner nodes of the tree that a file's names spell, so that short names cannot ask for much memory."""


def is_parameter(node: Tree) -> bool:
    """Whether *node* is the record of a parameter: a tensor under its id."""
    return (
        isinstance(node, dict)
        and node.keys() == {"id", "param"}
        and isinstance(node["id"], str)
        and isinstance(node["param"], RawTensor)
    )


def flatten(node: Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Tree]]:
    """The leaves of *node* by their dotted names, in order; a parameter is one leaf. Nil and () are left out.

    Raises `RecordError` where a name could not be split again.
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
    elif node is not None:
        yield join_path(path), node


def extend_path(path: tuple[str, ...], key: Tree) -> tuple[str, ...]:
    """*path* with *key*, one step down. Raises `RecordError` where that is too deep or the key no text."""
    if len(path) >= MAX_DEPTH:
        raise RecordError(f"the record is nested deeper than {MAX_DEPTH} levels at {'.'.join(path[:4])}…")
    if not isinstance(key, str):
        raise RecordError(f"the record has the key {key!r} at {'.'.join(path)!r}: keys must be text")
    return (*path, key)


def join_path(path: tuple[str, ...]) -> str:
    """*path* as one name. Raises `RecordError` where a component has a dot, a NUL or nothing in it."""
    if not path or any("." in part for part in path):
        raise RecordError(f"what stands at {list(path)} in the record has no name without a dot in a part")
    return check_name(".".join(path), "the record")


def check_name(name: str, where: str) -> str:
    """*name* itself. Raises `RecordError` where a component is empty, or it has a NUL, or is no Unicode."""
    parts = name.split(".")
    shown = repr(name if len(name) < 100 else name[:100] + "…")
    if not all(parts) or "\0" in name:
        raise RecordError(f"{where} has the name {shown}: its parts between dots must be text without a NUL")
    if len(parts) > MAX_DEPTH:
        raise RecordError(f"{where} has the name {shown} of {len(parts)} parts, at most {MAX_DEPTH} are read")
    return check_text(name, where)


def check_text(text: str, where: str) -> str:
    """*text* itself. Raises `RecordError` where it has half a surrogate pair and could not be written."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"{where} has the text {text[:100]!r}, which is no valid Unicode") from error
    return text


def unflatten(leaves: Mapping[str, Tree], where: str) -> Tree:
    """The tree whose flat names are those of *leaves*; where the keys of a node run 0…n-1 it is a list."""
    root: dict[str, Tree] = {}
    branches = {id(root)}  # a leaf may be a dict too: a parameter
    for name, leaf in leaves.items():
        *stem, last = check_name(name, where).split(".")
        node = root
        for part in stem:
            if part not in node:
                node[part] = {}
                branches.add(id(node[part]))
            node = node[part]
            if id(node) not in branches:
                raise _taken(name, where)
        if last in node:
            raise _taken(name, where)
        node[last] = leaf
        if len(branches) > MAX_BRANCHES:
            raise RecordError(f"{where} has names that spell a tree of more than {MAX_BRANCHES} nodes")
    return _with_arrays(root, branches)


def _taken(name: str, where: str) -> RecordError:
    return RecordError(
        f"{where} has a value at {name!r} and another above or below it: only one can stand there"
    )


def _with_arrays(node: Tree, branches: set[int]) -> Tree:
    if id(node) not in branches:
        return node
    for key in node:
        node[key] = _with_arrays(node[key], branches)
    return _array(node) if _is_array(node) else node


def _is_array(node: dict[str, Tree]) -> bool:
    return bool(node) and "0" in node and all(str(index) in node for index in range(len(node)))


def _array(node: dict[str, Tree]) -> list[Tree]:
    return [node[str(index)] for index in range(len(node))]
