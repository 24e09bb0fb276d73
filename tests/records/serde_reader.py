"""Reads named records as Burn 0.14 to 0.21 would: serde's rules, for structs that are declared here.

Written from the description of the format alone, with none of our own code, to judge what we write:

    model = Struct(linear=Struct(weight=Param(2), bias=Opt(Param(1))), dropout=CONSTANT)
    read(path, model)["linear"]["weight"].tensor.shape
"""

import gzip
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

SIZES = {
    "F64": 8, "F32": 4, "Flex32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "Bool": 1,
}  # fmt: skip
MISSING = object()


class SerdeError(Exception):
    """An error for content that Burn would not load."""


class TensorValue(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class ParamValue(NamedTuple):
    id: str
    tensor: TensorValue


class Shape:
    """The declared type of a value."""

    def of(self, node: Any, path: str) -> Any:
        raise NotImplementedError

    def missing(self, path: str) -> Any:
        """The value of a field that is not there."""
        raise SerdeError(f"missing field `{path}`")


class Struct(Shape):
    def __init__(self, **fields: Shape) -> None:
        self.fields = fields

    def of(self, node: Any, path: str) -> dict[str, Any]:
        if not isinstance(node, dict):
            raise SerdeError(f"{path}: expected a struct, there is {node!r:.80}")
        return {
            name: shape.of(node[name], f"{path}.{name}") if name in node else shape.missing(f"{path}.{name}")
            for name, shape in self.fields.items()
        }


class Constant(Shape):
    """Any value is passed over, and none need be there."""

    def of(self, node: Any, path: str) -> None:
        return None

    def missing(self, path: str) -> None:
        return None


CONSTANT = Constant()


@dataclass
class Opt(Shape):
    shape: Shape

    def of(self, node: Any, path: str) -> Any:
        return None if node is None else self.shape.of(node, path)

    def missing(self, path: str) -> None:
        return None


@dataclass
class Vec(Shape):
    shape: Shape

    def of(self, node: Any, path: str) -> list[Any]:
        if not isinstance(node, list):
            raise SerdeError(f"{path}: expected a sequence, there is {node!r:.80}")
        return [self.shape.of(value, f"{path}.{index}") for index, value in enumerate(node)]


class Tuple(Shape):
    """A tuple, or with one shape and a length an array of that length."""

    def __init__(self, *shapes: Shape) -> None:
        self.shapes = shapes

    def of(self, node: Any, path: str) -> list[Any]:
        if not isinstance(node, list) or len(node) != len(self.shapes):
            raise SerdeError(f"{path}: expected {len(self.shapes)} elements, there is {node!r:.80}")
        return [
            shape.of(value, f"{path}.{index}")
            for index, (shape, value) in enumerate(zip(self.shapes, node, strict=True))
        ]


def Array(shape: Shape, length: int) -> Tuple:  # noqa: N802  it stands among types
    return Tuple(*[shape] * length)


class Enum(Shape):
    """A unit variant (None) is text, another a map of one entry."""

    def __init__(self, **variants: Shape | None) -> None:
        self.variants = variants

    def of(self, node: Any, path: str) -> Any:
        if isinstance(node, str) and node in self.variants and self.variants[node] is None:
            return node
        if isinstance(node, dict) and len(node) == 1:
            ((name, value),) = node.items()
            if self.variants.get(name) is not None:
                return {name: self.variants[name].of(value, f"{path}.{name}")}
        raise SerdeError(f"{path}: expected one of {list(self.variants)}, there is {node!r:.80}")


@dataclass
class MapOf(Shape):
    shape: Shape

    def of(self, node: Any, path: str) -> dict[str, Any]:
        if not isinstance(node, dict):
            raise SerdeError(f"{path}: expected a map, there is {node!r:.80}")
        return {key: self.shape.of(value, f"{path}.{key}") for key, value in node.items()}


class Text(Shape):
    def of(self, node: Any, path: str) -> str:
        if not isinstance(node, str):
            raise SerdeError(f"{path}: expected a string, there is {node!r:.80}")
        return node


class Int(Shape):
    """A usize, or a signed integer from *low* on."""

    def __init__(self, low: int = 0) -> None:
        self.low = low

    def of(self, node: Any, path: str) -> int:
        if type(node) is not int or not self.low <= node < 1 << 64:
            raise SerdeError(f"{path}: expected an integer from {self.low} on, there is {node!r:.80}")
        return node


class Float(Shape):
    """An integer is accepted too."""

    def of(self, node: Any, path: str) -> float:
        if type(node) not in (int, float):
            raise SerdeError(f"{path}: expected a float, there is {node!r:.80}")
        return float(node)


@dataclass
class Tensor(Shape):
    rank: int
    """None for any."""
    kind: str = "float"
    """Or ``int``, or ``bool``."""

    def of(self, node: Any, path: str) -> TensorValue:
        fields = Struct(bytes=_Bytes(), shape=Vec(Int()), dtype=_Dtype()).of(node, path)
        data, shape, dtype = fields["bytes"], tuple(fields["shape"]), fields["dtype"]
        if self.rank is not None and len(shape) != self.rank:
            raise SerdeError(f"{path}: expected {self.rank} dimensions, there is the shape {shape}")
        if len(data) != math.prod(shape) * SIZES[dtype]:
            raise SerdeError(f"{path}: {len(data)} bytes for {dtype} of the shape {shape}")
        if (self.kind == "bool") != (dtype == "Bool"):
            raise SerdeError(f"{path}: expected a tensor of {self.kind}, there is {dtype}")
        return TensorValue(dtype, shape, data)


class _Bytes(Shape):
    def of(self, node: Any, path: str) -> bytes:
        if isinstance(node, bytes):
            return node
        if isinstance(node, list) and all(type(byte) is int and 0 <= byte < 256 for byte in node):
            return bytes(node)
        raise SerdeError(f"{path}: expected bytes, there is {node!r:.80}")


class _Dtype(Shape):
    def of(self, node: Any, path: str) -> str:
        name = "Bool" if node in ({"Bool": "Native"}, {"Bool": "U8"}) else node
        if not isinstance(name, str) or name not in SIZES:
            raise SerdeError(f"{path}: unknown variant {node!r:.80}")
        return name


class _Id(Shape):
    """13 characters since 0.15, 10 in 0.14, or a UUID."""

    def of(self, node: Any, path: str) -> str:
        text = Text().of(node, path)
        if not re.fullmatch(r"[0-9a-v]{13}|[0-9a-v]{10}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text):
            raise SerdeError(f"{path}: Invalid id. {text!r:.80}")
        return text


@dataclass
class Param(Shape):
    rank: int
    kind: str = "float"

    def of(self, node: Any, path: str) -> ParamValue:
        fields = Struct(id=_Id(), param=Tensor(self.rank, self.kind)).of(node, path)
        return ParamValue(fields["id"], fields["param"])


class OptimizerState(Shape):
    """Of every parameter: id → ``{"V1": {"Rank<D>": state}}``; *state* makes the state's shape from D."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def of(self, node: Any, path: str) -> dict[str, Any]:
        ranks = Enum(**{f"Rank{rank}": self.state(rank) for rank in range(9)})
        states = MapOf(Enum(V1=ranks)).of(node, path)
        return {_Id().of(key, path): state["V1"] for key, state in states.items()}


class _Marker(Shape):
    """``PhantomData``: an array with nothing in it, or nil; there has to be one."""

    def of(self, node: Any, path: str) -> None:
        if node not in ([], None):
            raise SerdeError(f"{path}: invalid type, expected unit, there is {node!r:.80}")


METADATA = Struct(float=Text(), int=Text(), format=Text(), version=Text(), settings=Text())


def read(path: Path, struct: Shape) -> Any:
    """The item of the record at *path* as *struct*. Raises `SerdeError` where Burn would fail."""
    data = path.read_bytes()
    if path.name.endswith(".gz"):
        data = gzip.decompress(data)
    tree = _from_json(data) if ".json" in path.name else _from_messagepack(data)
    return Struct(metadata=METADATA, item=struct, _b=_Marker()).of(tree, "record")["item"]


def _unique(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    node = dict(pairs)
    if len(node) != len(pairs):
        raise SerdeError(f"duplicate field among {[key for key, _ in pairs]}")
    return node


def _from_messagepack(data: bytes) -> Any:
    """The first value; what follows it is ignored."""
    unpacker = msgpack.Unpacker(
        object_pairs_hook=_unique, strict_map_key=True, raw=False, max_buffer_size=max(len(data), 1)
    )
    unpacker.feed(data)
    try:
        return unpacker.unpack()
    except (ValueError, msgpack.UnpackException) as error:
        raise SerdeError(f"no MessagePack: {error!r}") from error


def _from_json(data: bytes) -> Any:
    try:
        return json.loads(data, object_pairs_hook=_unique)
    except ValueError as error:
        raise SerdeError(f"no JSON: {error}") from error
