"""A metric's running summary as a plain tree, and back, so that an epoch's sums survive a stop in its middle.

The tree holds tensors, numbers, text, bytes, lists and maps with text keys, and no code: a class is only
named, and the name is looked up among the classes that the next batch's summary is made of. Whatever else
is no plain value is named too:

* ``{"tuple": […]}``, ``{"set": […]}``, ``{"frozenset": […]}``, and ``{"dict": [key, value, …]}`` of a map
* ``{"int": "…"}``: an integer beyond 64 bits
* ``{"array": tensor}``, ``{"scalar": tensor}``: of NumPy
* ``{"object": name, "holds": [attribute, value, …]}``: one with a ``__dict__``, slots or named fields
* ``{"enum": name, "member": …}``
* ``{"same": None}``: what is no state (a function, a class, a module, a metric), and is taken from the next
  batch's summary
"""

import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from stages.contracts.errors import CheckpointError
from stages.metrics.chunks import Chunks
from stages.metrics.makeup import attributes, classes_in, filled, holds_all_in_python, name_of
from stages.metrics.mean import Mean
from stages.metrics.metric import Summary

Tree = Any
"""Nested dicts with text keys, lists, tensors, numbers, text, bytes, booleans and None."""
S = TypeVar("S", bound=Summary)

DEPTH = 32
"""How deep values may lie in each other; a level is at most two of the tree's."""
PLAIN = (type(None), bool, float, str, bytes)
GROUPS: Mapping[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}
MAPS: Mapping[str, Any] = {"dict": dict, "Counter": Counter, "OrderedDict": OrderedDict}
NO_STATE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, partial, torch.nn.Module)


def to_tree(summary: Summary, metric: str = "") -> Tree:
    """*summary* as a tree, which shares its tensors.

    Raises `TypeError`, naming the *metric*, where it holds something that no file could without code.
    """
    return _Writer(metric or type(summary).__name__).tree(summary, "", 0)


def from_tree(tree: Tree, like: S, metric: str = "") -> S:
    """The summary that *tree* was made of; adding *like*, the next batch's, gives what it would have given.

    Tensors come to the devices that those of *like* are on. Raises `CheckpointError`, naming the *metric*,
    where *tree* is not of such a summary.
    """
    reader = _Reader(like, metric or type(like).__name__)
    try:
        summary = reader.value(tree, like)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, IndexError) as error:
        raise reader.mismatch(str(error)) from error
    if type(summary) is not type(like):
        raise reader.mismatch(f"it is a {type(summary).__name__}, and this a {type(like).__name__}")
    return summary


class _Writer:
    """From values to nodes; *path* says where in the summary a value is."""

    def __init__(self, metric: str) -> None:
        self._metric = metric

    def tree(self, value: Any, path: str, depth: int) -> Tree:
        if depth > DEPTH:
            raise self._refused(path, f"values more than {DEPTH} deep")
        kind = type(value)
        inner = partial(self.tree, depth=depth + 1)
        if kind in PLAIN:
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**63 else {"int": str(value)}
        if kind is Tensor or kind is torch.nn.Parameter:
            return self._tensor(value.detach(), path)
        if kind is list:
            return [inner(each, f"{path}[{place}]") for place, each in enumerate(value)]
        if kind is tuple:
            return {"tuple": [inner(each, f"{path}[{place}]") for place, each in enumerate(value)]}
        if kind in GROUPS.values():  # sorted as trees: repr() of a set in a set depends on PYTHONHASHSEED
            return {kind.__name__: sorted((inner(each, f"{path}[…]") for each in value), key=repr)}
        if kind in MAPS.values():
            pairs = (part for key, each in value.items() for part in (key, each))
            return {kind.__name__: [inner(each, f"{path}[…]") for each in pairs]}
        return self._other(value, path, inner)

    def _other(self, value: Any, path: str, inner: Callable[[Any, str], Tree]) -> Tree:
        if isinstance(value, Enum):
            return {"enum": name_of(type(value)), "member": value.name}
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value, path)
        if path and _is_no_state(value):
            return {"same": None}
        if not holds_all_in_python(value):
            raise self._refused(path, f"a {type(value).__name__}")
        held = [part for name, each in attributes(value) for part in (name, inner(each, f"{path}.{name}"))]
        return {"object": name_of(type(value)), "holds": held}

    def _tensor(self, tensor: Tensor, path: str) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
            raise self._refused(path, f"a tensor of {tensor.dtype}, {tensor.layout}")
        return tensor

    def _array(self, value: Any, path: str) -> Tree:
        try:
            tensor = torch.from_numpy(np.array(value, order="C"))
        except (TypeError, ValueError):
            raise self._refused(path, f"an array of {value.dtype}") from None
        return {"array" if isinstance(value, np.ndarray) else "scalar": self._tensor(tensor, path)}

    def _refused(self, path: str, what: str) -> TypeError:
        return TypeError(
            f"what metric {self._metric!r} adds up holds {what} at {path or 'its top'}, which no checkpoint "
            "can hold: let it be made of numbers, text, tensors, lists and maps, in attributes of its own"
        )


class _Reader:
    """From nodes to values; *like* is what the next batch has at the same place, or None."""

    def __init__(self, like: Summary, metric: str) -> None:
        found = list(_walked(like))
        self._metric = metric
        self._classes = {name_of(kind): kind for kind in (Mean, Chunks, *classes_in(found))}
        self._device = next((each.device for each in found if isinstance(each, Tensor)), torch.device("cpu"))

    def value(self, node: Tree, like: Any) -> Any:
        if isinstance(node, Tensor):
            return node.to(like.device if isinstance(like, Tensor) else self._device)
        if isinstance(node, list):
            return self._each(node, like if isinstance(like, list) else [])
        if not isinstance(node, dict):
            return node
        match node:
            case {"object": name, "holds": held}:
                return self._object(self._class(name), held, like)
            case {"enum": name, "member": member}:
                return self._class(name)[member]
            case {"same": None}:
                if not _is_no_state(like):
                    raise self.mismatch("it lacks what only the next batch's could give it")
                return like
        ((kind, held),) = node.items()
        return self._named(kind, held, like)

    def _named(self, kind: str, held: Any, like: Any) -> Any:
        if kind == "int":
            return int(held)
        if kind == "array":
            return held.cpu().numpy()
        if kind == "scalar":
            return held.cpu().numpy()[()]
        if kind in GROUPS:
            return GROUPS[kind](self._each(held, list(like) if isinstance(like, GROUPS[kind]) else []))
        made = MAPS[kind]()
        there = like if isinstance(like, MAPS[kind]) else {}
        for key_node, each in zip(held[::2], held[1::2], strict=True):
            key = self.value(key_node, None)
            made[key] = self.value(each, there.get(key))
        return made

    def _each(self, nodes: list[Tree], like: list[Any]) -> list[Any]:
        """A list grows as it adds up, so its first element speaks for those that *like* lacks."""
        first = like[0] if like else None
        return [self.value(n, like[place] if place < len(like) else first) for place, n in enumerate(nodes)]

    def _object(self, kind: Any, held: list[Any], like: Any) -> Any:
        there = dict(attributes(like)) if isinstance(like, kind) else {}
        pairs = zip(held[::2], held[1::2], strict=True)
        return filled(kind, {name: self.value(each, there.get(name)) for name, each in pairs})

    def _class(self, name: str) -> Any:
        if name not in self._classes:
            raise self.mismatch(f"it holds a {name}, and what is measured now is made of none")
        return self._classes[name]

    def mismatch(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"what metric {self._metric!r} had added up is not what it measures now: {what}. Resume with the "
            "metrics that the run had, or from the end of an epoch"
        )


def _is_no_state(value: Any) -> bool:
    """Whether *value* is the same in every summary: what it is made by, and not what is counted."""
    return isinstance(value, NO_STATE) or hasattr(value, "measure") or hasattr(value, "measure_step")


def _walked(value: Any, depth: int = 0) -> Iterator[Any]:
    """*value* and all that it holds."""
    yield value
    if depth > DEPTH or (depth and _is_no_state(value)):
        return
    if type(value) in MAPS.values():
        parts = [*value.keys(), *value.values()]
    elif type(value) in (list, *GROUPS.values()):
        parts = list(value)
    else:
        parts = [each for _, each in attributes(value)] if holds_all_in_python(value) else []
    for part in parts:
        yield from _walked(part, depth + 1)
