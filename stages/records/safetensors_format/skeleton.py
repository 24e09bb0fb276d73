"""A tree as JSON with its tensors named, for a format that keeps tensors by name and little else.

What JSON has stands for itself; the rest is an object of one key: ``{"$tensor": name}``,
``{"$param": [name, id]}``, ``{"$float": "nan"}``, ``{"$bytes": base64}``, ``{"$tuple": […]}``,
``{"$map": {…}}``, ``{"$signed": 1}``, ``{"$some": …}``, ``{"$variant": [name, index, …]}``, and
``{"$dict": {…}}`` for a dict that could be taken for one of these.
"""

import base64
import binascii
import math
from typing import Any

from stages.contracts.errors import RecordError
from stages.records import dotted_names as flat
from stages.records.record_tree import Map, RawTensor, Signed, Some, Tree, Variant

Json = Any
Path = tuple[str, ...]


class Taken:
    """Takes a tree apart: `skeleton` is the JSON, `tensors` are its tensors by their dotted names."""

    def __init__(self, tree: Tree) -> None:
        self.tensors: dict[str, RawTensor] = {}
        self.skeleton = self._node(tree, ())

    def _node(self, node: Tree, path: Path) -> Json:
        if node is None or isinstance(node, bool):
            return node
        if flat.is_parameter(node):
            return {"$param": [self._named(node["param"], path), node["id"]]}
        if isinstance(node, RawTensor):
            return {"$tensor": self._named(node, path)}
        if isinstance(node, dict | list | tuple):
            return self._container(node, path)
        if isinstance(node, Some):
            return {"$some": self._node(node.value, path)}
        if isinstance(node, Variant):
            return {
                "$variant": [node.name, node.index, self._node(node.value, flat.extend_path(path, node.name))]
            }
        return self._scalar(node, path)

    def _container(self, node: Tree, path: Path) -> Json:
        if not isinstance(node, dict):
            items = [
                self._node(value, flat.extend_path(path, str(index))) for index, value in enumerate(node)
            ]
            return items if isinstance(node, list) else {"$tuple": items}
        entries = {key: self._node(value, flat.extend_path(path, key)) for key, value in node.items()}
        if isinstance(node, Map):
            return {"$map": entries}
        return {"$dict": entries} if _is_special(entries) else entries

    def _scalar(self, node: Tree, path: Path) -> Json:
        if isinstance(node, Signed):
            return {"$signed": int(node)}
        if isinstance(node, float) and not math.isfinite(node):
            return {"$float": str(node)}
        if isinstance(node, int | float | str):
            return node
        if isinstance(node, bytes):
            return {"$bytes": base64.b64encode(node).decode()}
        raise RecordError(f"{'.'.join(path)} is a {type(node).__name__}, which no record can hold")

    def _named(self, tensor: RawTensor, path: Path) -> str:
        name = flat.join_path(path)
        if name in self.tensors:
            raise RecordError(f"two tensors of the record have the name {name!r}")
        self.tensors[name] = tensor
        return name


class Put:
    """Puts the tree together again from its JSON and *tensors*; *where* names the file in a `RecordError`."""

    def __init__(self, skeleton: Json, tensors: dict[str, RawTensor], *, where: str) -> None:
        self._left = dict(tensors)
        self._where = where
        self.tree = self._node(skeleton, (), 0)
        if self._left:
            raise RecordError(
                f"{where} has the tensor {next(iter(self._left))!r}, which its tree does not name"
            )

    def _node(self, node: Json, path: Path, depth: int) -> Tree:
        if depth > flat.MAX_DEPTH:
            raise RecordError(f"{self._where}: its tree is nested deeper than {flat.MAX_DEPTH} levels")
        if isinstance(node, list):
            return self._items(node, path, depth)
        if not isinstance(node, dict):
            return self._text(node) if isinstance(node, str) else node
        if not _is_special(node):
            return self._entries(node, path, depth)
        [(kind, value)] = node.items()
        try:
            return self._special(kind, value, path, depth)
        except (ValueError, TypeError, KeyError, OverflowError, binascii.Error) as error:
            raise RecordError(
                f"{self._where}: its tree has a {kind[:20]!r} that is none, or a tensor twice"
            ) from error

    def _entries(self, node: dict[str, Json], path: Path, depth: int) -> dict[str, Tree]:
        return {self._key(key): self._node(value, (*path, key), depth + 1) for key, value in node.items()}

    def _items(self, node: list[Json], path: Path, depth: int) -> list[Tree]:
        return [self._node(value, (*path, str(index)), depth + 1) for index, value in enumerate(node)]

    def _tensor(self, name: str, path: Path) -> RawTensor:
        tensor = self._left.pop(name)
        if name != flat.join_path(path):
            raise ValueError(name)
        return tensor

    def _special(self, kind: str, value: Json, path: Path, depth: int) -> Tree:
        if kind == "$tensor":
            return self._tensor(value, path)
        if kind == "$param":
            name, param_id = value
            return {"id": self._text(param_id), "param": self._tensor(name, path)}
        if kind == "$variant":
            name, index, inner = value
            return Variant(self._key(name), _whole(index), self._node(inner, (*path, name), depth + 1))
        if kind == "$some":
            return Some(self._node(value, path, depth + 1))
        if kind in {"$map", "$dict"} and isinstance(value, dict):
            entries = self._entries(value, path, depth)
            return Map(entries) if kind == "$map" else entries
        if kind == "$tuple" and isinstance(value, list):
            return tuple(self._items(value, path, depth))
        return self._scalar(kind, value)

    def _scalar(self, kind: str, value: Json) -> Tree:
        if kind == "$signed":
            return Signed(_whole(value))
        if kind == "$float" and value in {"nan", "inf", "-inf"}:
            return float(value)
        if kind == "$bytes":
            return base64.b64decode(value, validate=True)
        raise ValueError(kind)

    def _text(self, value: Json) -> str:
        if not isinstance(value, str):
            raise TypeError(value)
        return flat.check_text(value, self._where)

    def _key(self, key: Json) -> str:
        if ".." in self._text(key) or "\0" in key:
            raise RecordError(f"{self._where}: its tree has the name {key[:100]!r}, with '..' or a NUL in it")
        return str(key)


def _is_special(node: dict[str, Json]) -> bool:
    return len(node) == 1 and next(iter(node)).startswith("$")


def _whole(value: Json) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value
