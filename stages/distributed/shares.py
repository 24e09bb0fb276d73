"""The share of this rank in batches that were loaded as a whole."""

from collections.abc import Iterable, Iterator, Sequence, Sized
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
    """Return the length of the first tensor in *batch*."""
    lengths: list[int] = []

    def note(part: Any) -> Any:
        if _is_rows(part):
            lengths.append(len(part))
        return part

    transform(batch, note)
    if not lengths:
        raise BuilderError(
            f"a batch of the type {type(batch).__name__} has no tensor whose first dimension counts the "
            "samples, so the ranks cannot divide it. Use a stages.data.DataLoader, or batches of tensors"
        )
    return lengths[0]


def _take(batch: Any, part: slice, samples: int) -> Any:
    """Return the samples of *part*: of all tensors and lists whose length is *samples*."""
    if isinstance(batch, list) and len(batch) == samples and not any(isinstance(e, Tensor) for e in batch):
        return batch[part]
    if isinstance(batch, dict):
        return type(batch)((key, _take(value, part, samples)) for key, value in batch.items())
    if isinstance(batch, tuple) and not hasattr(batch, "_fields"):
        return tuple(_take(value, part, samples) for value in batch)
    return transform(batch, lambda each: each[part] if _is_rows(each) and len(each) == samples else each)


def _is_rows(part: Any) -> bool:
    return isinstance(part, Sized | Sequence) and (not isinstance(part, Tensor) or part.ndim > 0)
