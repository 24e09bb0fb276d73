"""The share of this rank in batches that were loaded as a whole."""

from collections import UserDict
from collections.abc import Iterable, Iterator, Sequence, Sized
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.placement import transform
from stages.contracts.shares import share_of


class Share(NamedTuple):
    """The part of a batch that this rank computes."""

    batch: Any
    """None if the rank has no sample of the batch."""
    samples: int
    """The number of samples of the batch, on all ranks together."""


def iterate_shares(
    batches: Iterable[Any], rank: int, size: int, *, fills_empty: bool = False
) -> Iterator[Share]:
    """Yield the share of *rank* in each of *batches*, which were loaded as a whole.

    With *fills_empty*, an empty share is the first sample. Raises `BuilderError` for a batch that cannot be
    divided.
    """
    for batch in batches:
        samples = _count_samples(batch)
        part = share_of(samples, rank, size)
        if fills_empty and part.stop == part.start:
            part = slice(0, 1)
        yield Share(_take(batch, part, samples) if part.stop > part.start else None, samples)


def _count_samples(batch: Any) -> int:
    """Return the length of the tensors in *batch*."""
    lengths = sorted({len(part) for part in _find_rows(batch)})
    kind = type(batch).__name__
    if not lengths:
        raise BuilderError(
            f"a batch of the type {kind} has no tensor whose first dimension counts the samples, so the "
            "ranks cannot divide it. Use a stages.data.DataLoader, or batches of tensors"
        )
    if len(lengths) > 1:
        raise BuilderError(
            f"a batch of the type {kind} has tensors of the lengths {', '.join(map(str, lengths))}, so the "
            "ranks cannot find its samples. Pad samples of different sizes, keep other tensors in the model, "
            "or use a stages.data.DataLoader"
        )
    return lengths[0]


def _find_rows(batch: Any) -> Iterator[Any]:
    """Yield the tensors in *batch* that have a dimension, and other objects with ``to`` and a length."""
    found: list[Any] = []

    def note(part: Any) -> Any:
        if _is_rows(part):
            found.append(part)
        return part

    if isinstance(batch, UserDict):  # such as the batches of Hugging Face's tokenizers
        batch = dict(batch)
    transform(batch, note)
    yield from found


def _take(batch: Any, part: slice, samples: int) -> Any:
    """Return the samples of *part*: of all tensors and lists whose length is *samples*."""
    if isinstance(batch, UserDict):
        taken = copy(batch)
        taken.data = {key: _take(value, part, samples) for key, value in batch.data.items()}
        return taken
    if hasattr(batch, "to"):
        return batch[part] if _is_rows(batch) and len(batch) == samples else batch
    if isinstance(batch, list) and len(batch) == samples and not any(isinstance(e, Tensor) for e in batch):
        return batch[part]
    if isinstance(batch, dict):
        return type(batch)((key, _take(value, part, samples)) for key, value in batch.items())
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_take(value, part, samples) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(_take(value, part, samples) for value in batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        values = {each.name: getattr(batch, each.name) for each in fields(batch)}
        return replace(batch, **{name: _take(value, part, samples) for name, value in values.items()})
    return batch


def _is_rows(part: Any) -> bool:
    return isinstance(part, Sized | Sequence) and (not isinstance(part, Tensor) or part.ndim > 0)
