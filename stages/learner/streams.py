"""Loaders of streams: they may have no length, and a stream may save its position."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from itertools import islice
from typing import Any, Self, cast

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from stages.contracts.errors import BuilderError
from stages.contracts.history import Split
from stages.contracts.plugins import check_object
from stages.learner.batches import Loader, LoaderOptions
from stages.learner.checks import LOADER
from stages.learner.resume.training_state import Stateful
from stages.records import decode_state, encode_state

log = logging.getLogger(__name__)


def count_batches(loader: Loader) -> int | None:
    """Return the number of batches of *loader*; None if it has no length.

    Raises `BuilderError` if it is an iterator, which has batches for one pass only, or a class or a dataset.
    """
    check_object(loader, "loader", LOADER, "__iter__")
    if isinstance(loader, Iterator):
        raise BuilderError(
            f"a loader is an iterator, {type(loader).__name__}, which ends after one pass: pass an object "
            "whose __iter__ returns a new iterator"
        )
    try:
        return len(cast(Any, loader))  # optional in the protocol
    except TypeError:
        return None


def has_exact_length(loader: Loader) -> bool:
    """Return whether *loader* has a length that is the number of batches of each pass.

    That of a loader of an `IterableDataset` with workers, and of a class or a sampler of a user, may be
    another one.
    """
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        sampler = loader.batch_sampler
        inner = sampler.sampler if isinstance(sampler, BatchSampler) else None
        parts = (loader, loader.sampler, sampler, inner)
        return all(part is None or type(part).__module__.startswith("torch.") for part in parts)
    has_position = LoaderOptions.of(loader).set_position is not None and count_batches(loader) is not None
    return has_position or isinstance(loader, list | tuple)


def no_batches() -> BuilderError:
    """Return the error for a loader without batches."""
    return BuilderError("a loader has no batches: pass a loader with at least one batch for each split")


class Lookahead:
    """An iterator over batches whose end can be detected before it is reached."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._next: list[Any] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._next.pop() if self._next else next(self._batches)

    def has_next(self) -> bool:
        """Return whether there is another batch, which is loaded now."""
        if not self._next:
            self._next.extend(islice(self._batches, 1))
        return bool(self._next)


class Streams:
    """The loaders and iterable datasets of a run that save their position.

    A dataset is saved with each checkpoint, because a pass may continue where the last one ended. A loader,
    such as torchdata's StatefulDataLoader, is saved within its pass only: each pass has all batches.
    """

    def __init__(self) -> None:
        self._streams: dict[Split, Stateful] = {}
        self._saved: dict[str, Any] = {}

    def restore(self, loaders: Mapping[Split, Loader]) -> None:
        """Use *loaders*, and move them to the position of the checkpoint that the run resumes from."""
        self._streams = {
            split: stream for split, loader in loaders.items() if (stream := find_stream(loader)) is not None
        }
        for split, stream in self._streams.items():
            if split.value in self._saved:
                stream.load_state_dict(decode_state(self._saved[split.value]))

    @contextmanager
    def keep_position(self, split: Split) -> Iterator[None]:
        """Move the iterable dataset of *split*, if it saves its position, back to it after the block."""
        stream = self._streams.get(split)
        state = deepcopy(stream.state_dict()) if isinstance(stream, IterableDataset) else None
        yield
        if stream is not None and state is not None:
            stream.load_state_dict(state)

    def is_restored(self, split: Split) -> bool:
        """Return whether the loader of *split*, in which the run resumes, is at its position already."""
        return split in self._streams and split.value in self._saved

    def save(self, split: Split | None = None) -> None:
        """Save the positions after a batch of *split*, or after an epoch."""
        self._saved = {
            stream_split.value: encode_state(stream.state_dict(), f"state_dict() of {type(stream).__name__}")
            for stream_split, stream in self._streams.items()
            if stream_split is split or isinstance(stream, IterableDataset)
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the saved position of each stream, by split."""
        return self._saved

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Use *state* in `restore`."""
        self._saved = dict(state)


def find_stream(loader: Any) -> Stateful | None:
    """Return *loader* or its iterable dataset, whichever saves its position; None if neither does.

    A dataset with workers does not, because they iterate over copies of it.
    """
    dataset = LoaderOptions.of(loader).dataset
    is_read_here = isinstance(dataset, IterableDataset) and not loader.num_workers
    parts = (loader, dataset if is_read_here else None)
    return next((part for part in parts if isinstance(part, Stateful)), None)


def check_streams(loaders: Mapping[Split, Loader]) -> None:
    """Log a warning for each of *loaders* that reads a stream whose position cannot be saved."""
    for loader in loaders.values():
        dataset = LoaderOptions.of(loader).dataset
        if isinstance(dataset, IterableDataset) and find_stream(loader) is None:
            log.warning(
                "the position in %s cannot be saved: a run that resumes within an epoch reads the epoch's "
                "first batches again, and equals an uninterrupted one only if they are the same. Use a "
                "dataset with state_dict() and load_state_dict() and no workers, or torchdata's "
                "StatefulDataLoader",
                type(dataset).__name__,
            )
