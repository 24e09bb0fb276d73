"""What an object is made of, and how one is made of that again without its class being called."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_type_hints

from torch import Tensor

WRITTEN_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def attributes(value: Any) -> list[tuple[str, Any]]:
    """Name and value of all that *value* holds, in slots and out of them; of a named tuple, its fields."""
    if _is_named_tuple(type(value)):
        return list(zip(value._fields, value, strict=True))
    held = dict(getattr(value, "__dict__", {}))
    slots = {name: getattr(value, name) for name in _slots(type(value)) if hasattr(value, name)}
    return [*slots.items(), *held.items()]


def filled(kind: Any, held: Mapping[str, Any]) -> Any:
    """An object of class *kind* that holds *held*; its ``__init__`` is not called.

    Raises `AttributeError` for what such an object does not have, and for a field that is not there.
    """
    lacking = {field.name for field in fields(kind)} - set(held) if is_dataclass(kind) else set()
    if lacking:
        raise AttributeError(f"a {kind.__name__} lacks {', '.join(sorted(lacking))}")
    if _is_named_tuple(kind):
        return kind._make(held[name] for name in kind._fields)
    made, slots = object.__new__(kind), set(_slots(kind))
    for name, value in held.items():
        if name.startswith("__") and name not in slots:
            raise AttributeError(f"an attribute is called {name!r}")
        object.__setattr__(made, name, value)  # the class may be frozen
    return made


def holds_all_in_python(value: Any) -> bool:
    """Whether `attributes` is all there is of *value*: nothing of it is kept by code that is not Python."""
    kind = type(value)
    if _is_named_tuple(kind):
        return True
    if isinstance(value, Tensor) or not all(each.__flags__ & WRITTEN_IN_PYTHON for each in kind.__mro__[:-1]):
        return False
    return hasattr(value, "__dict__") or any("__slots__" in vars(each) for each in kind.__mro__)


def classes_in(values: Iterable[Any]) -> Iterator[Any]:
    """The classes of *values*, and those that their annotations speak of."""
    seen: set[Any] = set()
    left = [type(value) for value in values if isinstance(value, Enum) or holds_all_in_python(value)]
    while left:
        kind = left.pop()
        if kind in seen:
            continue
        seen.add(kind)
        yield kind
        left += [each for hint in _hints(kind) for each in _named(hint)]


def name_of(kind: type) -> str:
    """By which a class is known in a tree."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _slots(kind: type) -> list[str]:
    """The names of all slots that hold values, as they are looked up on an object."""
    found = []
    for each in reversed(kind.__mro__):
        slots = vars(each).get("__slots__", ())
        for slot in [slots] if isinstance(slots, str) else slots:
            if slot in ("__dict__", "__weakref__"):
                continue
            private = slot.startswith("__") and not slot.endswith("__")
            found.append(f"_{each.__name__.lstrip('_')}{slot}" if private else slot)
    return found


def _hints(kind: type) -> list[Any]:
    try:
        return list(get_type_hints(kind).values())
    except Exception:  # noqa: BLE001 - an annotation may be anything, and is only a help here
        return []


def _named(hint: Any) -> Iterator[type]:
    """The classes of a user's own in *hint*: ``Tally`` of ``dict[str, Tally | None]``."""
    if isinstance(hint, type) and not get_args(hint):
        if hint.__flags__ & WRITTEN_IN_PYTHON and not issubclass(hint, Tensor):
            yield hint
        return
    for each in get_args(hint):
        yield from _named(each)
