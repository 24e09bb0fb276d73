"""Transfer of batches between devices, and the share of each rank in a batch.

Rank r of R takes a contiguous part of its n samples. The parts differ by at most one sample, and together
they are the batch, so that the ranks train on what one process would train on. Rank 0 has a sample of every
batch that has any.
"""

from collections import UserDict
from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple


class DeferredBatch(NamedTuple):
    """A batch that is gathered from *indices* when it is needed: eagerly, or by a CUDA graph."""

    indices: Any
    """The samples, int64, on the device."""
    gather: Callable[[Any], Any]
    """Returns the batch of such indices; the same object for all batches of a loader."""

    def load(self) -> Any:
        """Return the batch."""
        return self.gather(self.indices)


def load(batch: Any) -> Any:
    """Return *batch*, gathered if it is deferred."""
    return batch.load() if isinstance(batch, DeferredBatch) else batch


def move(batch: Any, device: Any) -> Any:
    """Return *batch* on *device*: objects with ``to``, also in tuples, lists, dicts and dataclasses."""
    return transform(batch, lambda part: part.to(device, non_blocking=True))


def has_to(part: Any) -> bool:
    """Return whether *part* has a method ``to``, such as a tensor."""
    return hasattr(part, "to")


def is_named_tuple(value: Any) -> bool:
    """Return whether *value* is a named tuple, whose class takes the parts one by one."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def field_values(value: Any) -> dict[str, Any]:
    """Return the fields of the dataclass *value* by name."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def transform(batch: Any, change: Callable[[Any], Any], is_part: Callable[[Any], bool] = has_to) -> Any:
    """Return *batch* with *change* applied to its parts: by default to the objects that `move` moves."""
    if is_part(batch):
        return change(batch)

    def inner(part: Any) -> Any:
        return transform(part, change, is_part)

    if is_named_tuple(batch):
        return type(batch)(*map(inner, batch))
    if isinstance(batch, tuple | list):
        return type(batch)([inner(part) for part in batch])
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{name: inner(part) for name, part in field_values(batch).items()})
    if isinstance(batch, dict):
        return {name: inner(part) for name, part in batch.items()}
    if isinstance(batch, UserDict):
        changed = copy(batch)
        changed.data = {name: inner(part) for name, part in batch.data.items()}
        return changed
    return batch


def list_parts(batch: Any, is_part: Callable[[Any], bool]) -> list[Any]:
    """Return the parts of *batch* to which `transform` applies a change, in order."""
    parts: list[Any] = []

    def note(part: Any) -> Any:
        parts.append(part)
        return part

    transform(batch, note, is_part)
    return parts


def share_of(samples: int, rank: int, size: int) -> slice:
    """Return the part of *samples* samples that *rank* of *size* ranks takes.

    >>> [share_of(5, rank, 2) for rank in range(2)]
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return slice(-(-samples * rank // size), -(-samples * (rank + 1) // size))
