"""Evaluation of the pickle in a file of `torch.save`, without importing or calling anything.

A pickle is a program that can import and call any function. This module evaluates the opcodes that a state
dict needs. An imported name is looked up in a fixed table whose entries only describe tensors; every other
name, and every other opcode, is an error. `torch.serialization.add_safe_globals` has no effect.
"""

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeVar

from stages.contracts.errors import RecordError
from stages.records.record_tree import MAX_DIMENSIONS, MAX_ELEMENTS

MAX_OPCODES = 8_000_000
"""Opcodes of one file; a tensor takes about 40."""
ADVICE = (
    "Save the weights alone, torch.save(model.state_dict(), path), or convert the file to safetensors where "
    "you trust it"
)
STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "Bool",
    "UntypedStorage": "U8",
}
"""The element type of each storage class of torch."""
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "Bool",
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "INT", "LONG", "FLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"),
    *("BINBYTES", "SHORT_BINBYTES", "BINSTRING", "SHORT_BINSTRING"),
}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict}
_Key = str | int | float | None
_Container = TypeVar("_Container", list[Any], dict[_Key, Any])


@dataclass(frozen=True)
class StorageRef:
    """A storage of a file: its key, the type of its elements, and how many it has."""

    key: str
    dtype: str
    numel: int


@dataclass(frozen=True)
class TensorRef:
    """A tensor of a file: elements of a storage, with offset and strides in elements."""

    storage: StorageRef
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class _Name:
    """A name in the table of permitted names."""

    text: str


def _describe_tensor(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> TensorRef:
    metadata = rest[2] if len(rest) > 2 else None
    return _check_tensor(storage, storage.dtype, offset, shape, stride, metadata)


def _describe_typed_tensor(
    storage: Any, offset: Any, shape: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, *rest: Any
) -> TensorRef:
    name = DTYPES[dtype.text.removeprefix("torch.")]
    return _check_tensor(storage, name, offset, shape, stride, rest[0] if rest else None)


def _check_tensor(*parts: Any) -> TensorRef:
    storage, dtype, offset, shape, stride, metadata = parts
    sizes = (offset, *shape, *stride)
    if not isinstance(storage, StorageRef) or not all(map(_is_size, sizes)):
        raise ValueError("a tensor has an invalid storage, offset, shape or stride")
    if metadata or len(shape) != len(stride) or len(shape) > MAX_DIMENSIONS:
        raise ValueError("a tensor has an unsupported layout")
    return TensorRef(storage, dtype, offset, tuple(shape), tuple(stride))


def _describe_parameter(data: Any, *_: Any) -> TensorRef:
    if not isinstance(data, TensorRef):
        raise TypeError("a parameter has no tensor")
    return data


def _build_dict(pairs: Any = ()) -> dict[_Key, Any]:
    return {_check_key(key): value for key, value in pairs}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _build_dict,
    "torch.Size": tuple,
    "torch._utils._rebuild_parameter": _describe_parameter,
    "torch._utils._rebuild_parameter_with_state": _describe_parameter,
    "torch._utils._rebuild_tensor": _describe_tensor,
    "torch._utils._rebuild_tensor_v2": _describe_tensor,
    "torch._utils._rebuild_tensor_v3": _describe_typed_tensor,
}
"""Every name that a pickle may call, with the function of this module that is called instead."""
NAMES = {
    *FUNCTIONS,
    *(f"{module}.{name}" for module in ("torch", "torch.storage") for name in STORAGES),
    *(f"torch.{name}" for name in DTYPES),
}
"""Every name that a pickle may import."""


def evaluate(file: BytesIO, where: str) -> Any:
    """Return the value of the pickle at the position of *file*, and advance *file* past it.

    Mappings and lists are plain; tensors are `TensorRef`. Raises `RecordError` for a name or an opcode that a
    state dict does not need; *where* names the file in the message.
    """
    program = _Program(where)
    try:
        for number, (opcode, argument, position) in enumerate(pickletools.genops(file)):
            if number >= MAX_OPCODES:
                raise RecordError(f"{where} has more than {MAX_OPCODES} opcodes. {ADVICE}")
            program.step(opcode.name, argument, position or 0)
        return program.stack.pop()
    except RecordError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise RecordError(f"{where} is not an intact file of torch.save: {error!s:.200}") from error


@dataclass
class _Program:
    """The stack and the memo of one pickle."""

    where: str
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def step(self, name: str, argument: Any, position: int) -> None:
        """Evaluate one opcode."""
        if name in _LITERALS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            self.stack.append(tuple(self._pop(_TUPLES[name])))
        elif name in {"GLOBAL", "STACK_GLOBAL"}:
            self._push_name(argument, position)
        elif name not in {"PROTO", "FRAME", "STOP"} and not self._evaluate(name, argument):
            raise RecordError(
                f"{self.where} has the opcode {name} at byte {position} of its pickle, which a state dict "
                f"does not need; nothing was executed. {ADVICE}"
            )

    def _evaluate(self, name: str, argument: Any) -> bool:
        """Evaluate an opcode that depends on earlier ones; return whether a state dict may have it."""
        match name:
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                self.stack.append(self.memo[argument])
            case "MARK":
                self.marks.append(len(self.stack))
            case "TUPLE":
                self.stack.append(tuple(self._pop_to_mark()))
            case "APPEND" | "APPENDS":
                values = self._pop(1) if name == "APPEND" else self._pop_to_mark()
                self._top(list).extend(values)
            case "SETITEM" | "SETITEMS":
                values = self._pop(2) if name == "SETITEM" else self._pop_to_mark()
                self._top(dict).update(_build_dict(zip(values[::2], values[1::2], strict=True)))
            case "REDUCE":
                self._call(*self._pop(2))
            case "BUILD":  # the versions of torch's modules, which are attributes of a mapping
                self._pop(1)
                self._top(dict)
            case "BINPERSID":
                self._push_storage(*self._pop(1))
            case _:
                return False
        return True

    def _push_name(self, argument: str | None, position: int) -> None:
        parts = self._pop(2) if argument is None else argument.split(" ", 1)
        text = ".".join(map(str, parts))
        if text not in NAMES:
            raise RecordError(
                f"{self.where} names {text[:100]!r} at byte {position} of its pickle, and only tensors, "
                f"mappings, lists, texts and numbers are read; nothing was imported or executed. {ADVICE}"
            )
        self.stack.append(_Name(text))

    def _pop(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise ValueError("its pickle takes more values than it has")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def _pop_to_mark(self) -> list[Any]:
        return self._pop(len(self.stack) - self.marks.pop())

    def _top(self, kind: type[_Container]) -> _Container:
        """Return the last value, which must be a *kind*."""
        top = self.stack[-1]
        if not isinstance(top, kind):
            name = "mapping" if kind is dict else "list"
            raise TypeError(f"expected a {name}, found a {type(top).__name__}")
        return top

    def _call(self, called: Any, arguments: Any) -> None:
        if not isinstance(called, _Name) or called.text not in FUNCTIONS or not isinstance(arguments, tuple):
            raise ValueError("its pickle calls what is not a function")
        self.stack.append(FUNCTIONS[called.text](*arguments))

    def _push_storage(self, reference: Any) -> None:
        kind, storage, key, _location, numel, *view = reference
        if kind != "storage" or not isinstance(key, str) or not _is_size(numel) or any(view):
            raise ValueError("its pickle references an unsupported storage")
        self.stack.append(StorageRef(key, STORAGES[storage.text.rpartition(".")[2]], numel))


def _check_key(key: Any) -> _Key:
    if not isinstance(key, str | int | float | None) or (isinstance(key, float) and math.isnan(key)):
        raise TypeError(f"a mapping has a key of the type {type(key).__name__}")
    if isinstance(key, int) and not _is_size(abs(key)):
        raise ValueError("a mapping has a key of more than 63 bits")
    return key


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < MAX_ELEMENTS
