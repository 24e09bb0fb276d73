"""Encoding of the state of Python objects, such as an optimizer, as a tree that every record can hold.

A record has text keys, lists, 64-bit integers and torch tensors. Any other value becomes a dict with one key
that starts with ``$``, so that `decode_state` returns values of the same types.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.contracts.errors import RecordError
from stages.records.named_records import DATA_KEYS
from stages.records.record_tree import Tree
from stages.records.tensors import check_recordable

ITEMS, INTEGER, ARRAY, DTYPE = "$items", "$integer", "$array", "$dtype"
DEQUE, DEFAULT = "$deque", "$defaultdict"
SEQUENCES: dict[str, type] = {"$tuple": tuple, "$set": set, "$frozenset": frozenset, "$size": torch.Size}
MAPPINGS: dict[str, type] = {ITEMS: dict, "$ordered": OrderedDict, "$counter": Counter}
FACTORIES: dict[str, Callable[[], Any]] = {kind.__name__: kind for kind in (int, float, list, dict, set)}
"""The functions of a `defaultdict` that can be recorded."""
NAMES = {kind: name for name, kind in (SEQUENCES | MAPPINGS).items()}
MAX_NESTING = 32
"""The largest number of containers in each other; a record has up to three levels for each."""
INT64 = range(-(2**63), 2**63)
NUMPY_KINDS = "biufcmMSU"
"""The kinds of NumPy's dtypes whose bytes are their values."""
ADVICE = (
    "Keep tensors, arrays, numbers, text, bytes, None, and lists, tuples, sets, deques and dicts of these in "
    "it, or leave the value out"
)


def encode_state(value: Any, location: str, depth: int = 0) -> Tree:
    """Return *value* as a tree that every record can hold, from which `decode_state` makes an equal value.

    Containers are copied, tensors are detached. Supported are the types of Python and NumPy for numbers, text
    and bytes, tensors, arrays, None, and lists, tuples, sets, deques and dicts of these.

    Raises:
        RecordError: If it contains a value of another type, also of a subclass of one of these. The message
            names the path of the value, which starts with *location*.
    """
    kind = type(value)
    if isinstance(value, Tensor):
        check_recordable(value, f"{location} is a tensor")
        return value.detach()
    if value is None or kind in (bool, float, str, bytes) or (kind is int and value in INT64):
        return value
    if kind is int:
        return {INTEGER: str(value)}
    if (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in NUMPY_KINDS:
        return {ARRAY: [value.dtype.str, list(value.shape), value.tobytes(), int(kind is np.ndarray)]}
    if kind is torch.dtype:
        return {DTYPE: str(value).removeprefix("torch.")}
    return _encode_container(value, location, depth)


def decode_state(tree: Tree) -> Any:
    """Return the value from which `encode_state` made *tree*."""
    if isinstance(tree, list):
        return [decode_state(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    mark = next(iter(tree), "")
    if mark in SEQUENCES:
        return SEQUENCES[mark](decode_state(tree[mark]))
    if mark in MAPPINGS:
        return MAPPINGS[mark](_decode_items(tree[mark]))
    if mark == DEQUE:
        return deque(decode_state(tree[mark][1]), tree[mark][0])
    if mark == DEFAULT:
        return defaultdict(FACTORIES.get(tree[mark][0]), _decode_items(tree[mark][1]))
    if mark == ARRAY:
        dtype, shape, content, is_array = tree[mark]
        array = np.ndarray(tuple(shape), np.dtype(dtype), bytes(content)).copy()
        return array if is_array else array[()]
    if mark == DTYPE:
        return getattr(torch, tree[mark])
    return int(tree[mark]) if mark == INTEGER else {key: decode_state(item) for key, item in tree.items()}


def _encode_container(value: Any, location: str, depth: int) -> Tree:
    if depth > MAX_NESTING:
        raise RecordError(f"{location:.200} is nested deeper than {MAX_NESTING} levels. {ADVICE}")

    def encode_list(items: Iterable[Any]) -> Tree:
        return [encode_state(item, f"{location}[{place}]", depth + 1) for place, item in enumerate(items)]

    def encode_items() -> Tree:
        keys = [encode_state(key, f"a key of {location}", depth + 1) for key in value]
        return [
            [key, encode_state(item, f"{location}[{name!r}]", depth + 1)]
            for key, (name, item) in zip(keys, value.items(), strict=True)
        ]

    kind = type(value)
    if kind is list:
        return encode_list(value)
    if kind in SEQUENCES.values():  # sets have another order in each process
        is_ordered = kind in (tuple, torch.Size)
        return {NAMES[kind]: encode_list(value if is_ordered else sorted(value, key=repr))}
    if kind is deque:
        return {DEQUE: [value.maxlen, encode_list(value)]}
    if kind is defaultdict and value.default_factory in (None, *FACTORIES.values()):
        factory = value.default_factory
        return {DEFAULT: [factory and factory.__name__, encode_items()]}
    is_plain = kind is dict and value.keys() != DATA_KEYS  # a file would have a tensor in its place
    if is_plain and all(type(key) is str and not key.startswith("$") for key in value):
        return {key: encode_state(item, f"{location}[{key!r}]", depth + 1) for key, item in value.items()}
    if kind in MAPPINGS.values():
        return {NAMES[kind]: encode_items()}
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    raise RecordError(f"{location} is of the type {name}, which no checkpoint can hold. {ADVICE}")


def _decode_items(items: Tree) -> dict[Any, Any]:
    return {decode_state(key): decode_state(item) for key, item in items}
