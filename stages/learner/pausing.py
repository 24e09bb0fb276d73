"""Stopping between two batches, and going on there as if nothing had been."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stages.contracts.errors import CheckpointError
from stages.contracts.events import Progress
from stages.contracts.history import Split
from stages.learner.meter import Meter
from stages.learner.parts import Parts
from stages.learner.place import Place
from stages.learner.randomness import (
    device_mismatch,
    device_names,
    random_state,
    restore_random_state,
    set_epoch,
)

log = logging.getLogger(__name__)


class Pausing:
    """Saves the step after which that is due, and takes a run up in the middle of an epoch."""

    def __init__(self, parts: Parts, progress: Progress) -> None:
        self._parts = parts
        self._progress = progress
        self._meter: Meter | None = None
        self._before: dict[str, Any] = {}
        self._skip = 0
        self._cannot_save = parts.saver is None

    def prepare(self) -> None:
        """What was logged and saved after the place where the run goes on, goes."""
        parts, place = self._parts, self._parts.place
        if place is None:
            parts.watchers.cut(parts.state.epoch)
        else:
            parts.watchers.resume(place.epoch, place.logs)
        if parts.saver is not None and parts.is_newest:
            parts.saver.tidy(parts.state.epoch, parts.history)

    def begin(self, loader: Any, meter: Meter) -> tuple[int, int]:
        """A pass over *loader* begins; how many of its batches and samples are done."""
        progress, place = self._progress, self._parts.place
        self._meter = meter
        set_epoch(loader, progress.epoch, self._parts.derived_seed(progress.epoch, progress.split))
        if place is None:
            return 0, 0
        meter.carry(place.sums)
        self._skip = place.iteration
        if hasattr(loader, "set_position"):
            loader.set_position(place.iteration)
            self._skip = 0
        return place.iteration, place.items

    def batches(self, batches: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        """Return an iterator over the rest of *batches*, drawn in the random state of an uninterrupted run.

        Raises `CheckpointError` if the loader ends before the position of the checkpoint.
        """
        place, devices = self._parts.place, self._parts.replicas.devices
        if place is not None:
            self._warn_of_devices(place)
            restore_random_state(place.before, devices)
        self._before = random_state(devices)
        left = iter(batches())
        if place is not None:
            _skip(left, self._skip)  # a loader of torch has no position
            restore_random_state(place.now, devices)
            self._parts.place = None
        return left

    def _warn_of_devices(self, place: Place) -> None:
        mismatch = device_mismatch(place.now["devices"], device_names(self._parts.replicas.devices))
        if mismatch:
            log.warning("%s", mismatch)

    def stops_after(self, iteration: int) -> bool:
        """Save if that is due after batch *iteration* of this pass; whether the run is to stop here.

        After the last batch it goes on: what follows is soon done, and can be saved too. Where nothing can be
        saved, it stops in training, and in validation goes on to the end of the epoch, which keeps it.
        """
        parts, progress = self._parts, self._progress
        asked, saves_next = parts.interrupter.should_stop(), iteration + 1 < progress.batches
        if not (asked or (parts.saver is not None and parts.saver.is_due(saves_next=saves_next))):
            return False
        if not self._cannot_save:
            if iteration == progress.batches or iteration % len(parts.replicas):
                return False
            self._save(iteration)
        stops = asked and not (self._cannot_save and progress.split is Split.VALID)
        if stops:
            log.info("Interrupted in epoch %d, %s batch %d.", progress.epoch, progress.split, iteration)
        return stops

    def _save(self, iteration: int) -> None:
        progress, meter = self._progress, self._meter
        try:
            sums = meter.sums() if meter else {}
        except TypeError as error:
            self._cannot_save = True
            log.warning("in the middle of an epoch this run cannot be saved: %s", error)
            return
        self._parts.save_step(
            Place(
                epoch=progress.epoch,
                split=progress.split,
                iteration=iteration,
                items=progress.items,
                before=self._before,
                now=random_state(self._parts.replicas.devices),
                sums=sums,
                logs=self._parts.watchers.position(),
                buffers=self._parts.replicas.buffers(),
            )
        )


def _skip(batches: Iterator[Any], number: int) -> None:
    """Draw the first *number* of *batches*. Raises `CheckpointError` if they end before."""
    missing = object()
    for done in range(number):
        if next(batches, missing) is missing:
            raise CheckpointError(
                f"the loader ended after {done} batches, but the checkpoint resumes after batch {number}: "
                "it was saved with other data or another batch size. Use the same loader as before"
            )
