"""The share of this rank in batches that were loaded as a whole."""

from collections import UserDict
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.placement import has_to, is_named_tuple, list_parts, share_of, transform


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
    """Return the length of the tensors in *batch*, and of other objects with ``to``."""
    kind = type(batch).__name__
    lengths = sorted({len(tensor) for tensor in _find_tensors(batch) if _is_rows(tensor)})
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


def _find_tensors(batch: Any) -> list[Any]:
    """Return the tensors in *batch*, and other objects with ``to``."""
    return list_parts(batch, _is_tensor)


def _take(batch: Any, part: slice, samples: int) -> Any:
    """Return the samples of *part*: of all tensors, arrays, lists and tuples whose length is *samples*."""

    def is_part(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return len(value) == samples and not is_named_tuple(value) and not _find_tensors(value)
        return _is_tensor(value) or isinstance(value, np.ndarray)

    def cut(value: Any) -> Any:
        return value[part] if _is_rows(value) and len(value) == samples else value

    return transform(batch, cut, is_part)


def _is_tensor(part: Any) -> bool:
    """Return whether *part* has ``to`` and is not a mapping, as the batches of a tokenizer are."""
    return has_to(part) and not isinstance(part, UserDict)


def _is_rows(part: Any) -> bool:
    return isinstance(part, Sized | Sequence) and (not isinstance(part, Tensor | np.ndarray) or part.ndim > 0)
