"""Skeletons: the tree of a record as JSON, with references to its tensors by name.

JSON values represent themselves; every other node is an object with one key: ``{"$tensor": name}``,
``{"$param": [name, id]}``, ``{"$float": "nan"}``, ``{"$bytes": base64}``, ``{"$tuple": […]}``,
``{"$map": {…}}``, ``{"$signed": 1}``, ``{"$some": …}``, ``{"$variant": [name, index, …]}``, and
``{"$dict": {…}}`` for a dict that could be taken for one of these.
"""

import base64
import binascii
import math
from typing import Any

from stages.contracts.errors import RecordError
from stages.records.dotted_names import check_text, extend_path, is_parameter, join_path
from stages.records.limits import MAX_DEPTH
from stages.records.record_tree import Map, RawTensor, Signed, Some, Tree, Variant

Json = Any
Path = tuple[str, ...]


class SkeletonEncoder:
    """Splits a tree into *skeleton*, its JSON, and *tensors*, its tensors by dotted name."""

    def __init__(self, tree: Tree) -> None:
        self.tensors: dict[str, RawTensor] = {}
        self.skeleton = self._encode(tree, ())

    def _encode(self, node: Tree, path: Path) -> Json:
        if node is None or isinstance(node, bool):
            return node
        if is_parameter(node):
            return {"$param": [self._add_tensor(node["param"], path), node["id"]]}
        if isinstance(node, RawTensor):
            return {"$tensor": self._add_tensor(node, path)}
        if isinstance(node, dict | list | tuple):
            return self._encode_container(node, path)
        if isinstance(node, Some):
            return {"$some": self._encode(node.value, path)}
        if isinstance(node, Variant):
            return {
                "$variant": [node.name, node.index, self._encode(node.value, extend_path(path, node.name))]
            }
        return self._encode_scalar(node, path)

    def _encode_container(self, node: Tree, path: Path) -> Json:
        if not isinstance(node, dict):
            items = [self._encode(value, extend_path(path, str(index))) for index, value in enumerate(node)]
            return items if isinstance(node, list) else {"$tuple": items}
        entries = {key: self._encode(value, extend_path(path, key)) for key, value in node.items()}
        if isinstance(node, Map):
            return {"$map": entries}
        return {"$dict": entries} if _is_special(entries) else entries

    def _encode_scalar(self, node: Tree, path: Path) -> Json:
        if isinstance(node, Signed):
            return {"$signed": int(node)}
        if isinstance(node, float) and not math.isfinite(node):
            return {"$float": str(node)}
        if isinstance(node, int | float | str):
            return node
        if isinstance(node, bytes):
            return {"$bytes": base64.b64encode(node).decode()}
        raise RecordError(f"{'.'.join(path)} has the type {type(node).__name__}, which cannot be recorded")

    def _add_tensor(self, tensor: RawTensor, path: Path) -> str:
        name = join_path(path)
        self.tensors[name] = tensor
        return name


class SkeletonDecoder:
    """Restores *tree* from its JSON and its tensors; *where* names the file in errors."""

    def __init__(self, skeleton: Json, tensors: dict[str, RawTensor], *, where: str) -> None:
        self._left = dict(tensors)
        self._where = where
        self.tree = self._decode(skeleton, (), 0)
        if self._left:
            raise RecordError(
                f"{where} has the tensor {next(iter(self._left))!r}, which its tree does not reference"
            )

    def _decode(self, node: Json, path: Path, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise RecordError(f"{self._where}: its tree is nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, list):
            return self._decode_items(node, path, depth)
        if not isinstance(node, dict):
            return self._check_text(node) if isinstance(node, str) else node
        if not _is_special(node):
            return self._decode_entries(node, path, depth)
        [(kind, value)] = node.items()
        try:
            return self._decode_special(kind, value, path, depth)
        except (ValueError, TypeError, KeyError, OverflowError, binascii.Error) as error:
            raise RecordError(
                f"{self._where}: its tree has an invalid {kind[:20]!r}, or references a tensor twice"
            ) from error

    def _decode_entries(self, node: dict[str, Json], path: Path, depth: int) -> dict[str, Tree]:
        return {
            self._check_key(key): self._decode(value, (*path, key), depth + 1) for key, value in node.items()
        }

    def _decode_items(self, node: list[Json], path: Path, depth: int) -> list[Tree]:
        return [self._decode(value, (*path, str(index)), depth + 1) for index, value in enumerate(node)]

    def _pop_tensor(self, name: str, path: Path) -> RawTensor:
        tensor = self._left.pop(name)
        if name != join_path(path):
            raise ValueError(name)
        return tensor

    def _decode_special(self, kind: str, value: Json, path: Path, depth: int) -> Tree:
        if kind == "$tensor":
            return self._pop_tensor(value, path)
        if kind == "$param":
            name, param_id = value
            return {"id": self._check_text(param_id), "param": self._pop_tensor(name, path)}
        if kind == "$variant":
            name, index, inner = value
            decoded = self._decode(inner, (*path, name), depth + 1)
            return Variant(self._check_key(name), _check_int(index), decoded)
        if kind == "$some":
            return Some(self._decode(value, path, depth + 1))
        if kind in {"$map", "$dict"} and isinstance(value, dict):
            entries = self._decode_entries(value, path, depth)
            return Map(entries) if kind == "$map" else entries
        if kind == "$tuple" and isinstance(value, list):
            return tuple(self._decode_items(value, path, depth))
        return self._decode_scalar(kind, value)

    def _decode_scalar(self, kind: str, value: Json) -> Tree:
        if kind == "$signed":
            return Signed(_check_int(value))
        if kind == "$float" and value in {"nan", "inf", "-inf"}:
            return float(value)
        if kind == "$bytes":
            return base64.b64decode(value, validate=True)
        raise ValueError(kind)

    def _check_text(self, value: Json) -> str:
        if not isinstance(value, str):
            raise TypeError(value)
        return check_text(value, self._where)

    def _check_key(self, key: Json) -> str:
        if ".." in self._check_text(key) or "\0" in key:
            raise RecordError(
                f"{self._where}: its tree has the name {key[:100]!r}; a name must not contain '..' or a NUL"
            )
        return str(key)


def _is_special(node: dict[str, Json]) -> bool:
    return len(node) == 1 and next(iter(node)).startswith("$")


def _check_int(value: Json) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value
