"""Transfer of batches between devices."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any


def move(batch: Any, device: Any) -> Any:
    """Return *batch* on *device*: objects with ``to``, also in tuples, lists, dicts and dataclasses."""
    return transform(batch, lambda part: part.to(device, non_blocking=True))


def transform(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return *batch* with *change* applied to the objects with ``to`` that `move` moves."""
    if hasattr(batch, "to"):
        return change(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*[transform(part, change) for part in batch])
    if isinstance(batch, tuple | list):
        return type(batch)([transform(part, change) for part in batch])
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(
            batch, **{each.name: transform(getattr(batch, each.name), change) for each in fields(batch)}
        )
    if isinstance(batch, dict):
        return {name: transform(part, change) for name, part in batch.items()}
    return batch
