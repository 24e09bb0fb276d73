"""Transfer of batches between devices."""

from dataclasses import fields, is_dataclass, replace
from typing import Any


def move(batch: Any, device: Any) -> Any:
    """Return *batch* on *device*: objects with ``to``, also in tuples, lists, dicts and dataclasses."""
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*[move(part, device) for part in batch])
    if isinstance(batch, tuple | list):
        return type(batch)([move(part, device) for part in batch])
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(
            batch, **{each.name: move(getattr(batch, each.name), device) for each in fields(batch)}
        )
    if isinstance(batch, dict):
        return {name: move(part, device) for name, part in batch.items()}
    return batch
