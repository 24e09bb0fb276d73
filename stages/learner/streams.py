"""Loaders of streams: they may have no length, and a stream may save its position."""

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Self, cast

from torch.utils.data import IterableDataset

from stages.contracts.errors import BuilderError
from stages.contracts.history import Split
from stages.learner.batches import Loader
from stages.learner.training_state import Stateful, decode_state, encode_state

log = logging.getLogger(__name__)


def count_batches(loader: Loader) -> int | None:
    """Return the number of batches of *loader*; None if it has no length.

    Raises `BuilderError` if it is an iterator, which has batches for one pass only.
    """
    if isinstance(loader, Iterator):
        raise BuilderError(
            f"a loader is an iterator, {type(loader).__name__}, which ends after one pass: pass an object "
            "whose __iter__ returns a new iterator"
        )
    try:
        return len(cast(Any, loader))  # optional in the protocol
    except TypeError:
        return None


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
        self._loaders: dict[Split, Stateful] = {}
        self._datasets: dict[Split, Stateful] = {}
        self._saved: dict[str, Any] = {}
        self._restored: set[Split] = set()

    def restore(self, loaders: Mapping[Split, Loader]) -> None:
        """Use *loaders*, and move them to the position of the checkpoint that the run resumes from."""
        for split, loader in loaders.items():
            if _is_stateful(loader):
                self._loaders[split] = cast(Any, loader)
            elif (dataset := _dataset_of(loader)) is not None and _is_stateful(dataset):
                self._datasets[split] = dataset
            stream = self._loaders.get(split) or self._datasets.get(split)
            if stream is not None and (state := self._saved.get(split.value)) is not None:
                stream.load_state_dict(decode_state(state))
                self._restored.add(split)

    def is_restored(self, split: Split) -> bool:
        """Return whether the loader of *split* is at its position in the epoch already."""
        return split in self._restored

    def save(self, split: Split | None = None) -> None:
        """Save the positions after a batch of *split*, or after an epoch."""
        streams = {**self._datasets, **({split: self._loaders[split]} if split in self._loaders else {})}
        self._saved = {
            each.value: encode_state(stream.state_dict(), f"state_dict() of {type(stream).__name__}")
            for each, stream in streams.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the saved position of each split; empty if there is none."""
        return self._saved

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Use *state* in `restore`."""
        self._saved = dict(state)


def check_streams(loaders: Mapping[Split, Loader]) -> None:
    """Log a warning for each of *loaders* that reads a stream whose position cannot be saved."""
    for loader in loaders.values():
        dataset = getattr(loader, "dataset", None)
        is_saved = _is_stateful(loader) or _is_stateful(_dataset_of(loader))
        if isinstance(dataset, IterableDataset) and not is_saved:
            log.warning(
                "the position in %s cannot be saved: a run that resumes within an epoch reads the epoch's "
                "first batches again, and equals an uninterrupted one only if they are the same. Use a "
                "dataset with state_dict() and load_state_dict() and no workers, or torchdata's "
                "StatefulDataLoader",
                type(dataset).__name__,
            )


def _dataset_of(loader: Any) -> Any:
    """Return the iterable dataset of *loader*; None with workers, which iterate over copies of it."""
    dataset = getattr(loader, "dataset", None)
    return dataset if isinstance(dataset, IterableDataset) and not loader.num_workers else None


def _is_stateful(stream: Any) -> bool:
    return hasattr(stream, "state_dict") and hasattr(stream, "load_state_dict")
