"""Checkpoints between two batches of an epoch, and the resume at such a position."""

import logging
from collections.abc import Iterator
from typing import Any

import torch

from stages.contracts.errors import CheckpointError
from stages.contracts.events import Progress
from stages.contracts.history import Split
from stages.contracts.interrupter import Interrupter
from stages.devices.rng import (
    describe_device_mismatch,
    device_names,
    get_rng_state,
    set_loader_epoch,
    set_rng_state,
)
from stages.learner.assembly import Components
from stages.learner.batches import Loader, iterate_on_device
from stages.learner.metering import Meter
from stages.learner.run_state import LoopPosition
from stages.learner.streams import Lookahead, count_batches

log = logging.getLogger(__name__)


class MidEpochCheckpointer:
    """Opens the loader of each split at the right batch, and saves the run between two batches."""

    def __init__(self, components: Components) -> None:
        self._state = components.state
        self._observers = components.observers
        self._replicas = components.replicas
        self._checkpoints = components.checkpoints
        self._interrupter: Interrupter = components.interrupter
        self._rng_state: dict[str, Any] = {}
        self._stream: Lookahead | None = None
        """The batches of a loader without a length."""
        self._can_save = components.checkpoints is not None
        saves = components.checkpoints is not None and components.checkpoints.saves_within_epochs
        self._unchecked = set(Split) if saves else set()

    def open(self, loader: Loader, epoch: int, split: Split) -> Iterator[Any]:
        """Return an iterator over the batches of *loader* from the position in the epoch, on the device.

        The batches are drawn in the random state of an uninterrupted run. Raises `CheckpointError` if the
        loader ends before the position.
        """
        position, devices = self._state.position, self._replicas.devices
        set_loader_epoch(loader, epoch, self._state.derive_seed(epoch, split))
        is_restored = self._state.streams.is_restored(split)
        skip = _set_position(loader, position) if position and not is_restored else 0
        if position is not None:
            _warn_of_devices(position, devices)
            set_rng_state(position.before, devices)
        self._rng_state = get_rng_state(devices)
        batches = iter(iterate_on_device(loader, devices[0]))
        self._stream = Lookahead(batches) if count_batches(loader) is None else None
        batches = batches if self._stream is None else self._stream
        if position is not None:
            _skip(batches, skip)
            set_rng_state(position.now, devices)
        return batches

    def stops_after(self, iteration: int, progress: Progress, meter: Meter) -> bool:
        """Save if a checkpoint is due after batch *iteration*; return whether the run stops here.

        After the last batch of a split the run continues: the end of the epoch is near and is saved too. If
        nothing can be saved, a run stops in training, but finishes a validation, whose epoch is then kept.
        Raises `BuilderError` after the first batch of a split if checkpoints are written at an interval and
        the value of a metric cannot be saved.
        """
        if progress.split in self._unchecked:
            self._prepare(meter)
            self._unchecked.remove(progress.split)
        checkpoints, is_asked = self._checkpoints, self._interrupter.should_stop()
        can_save_next = not progress.batches or iteration + 1 < progress.batches
        if not (is_asked or (checkpoints is not None and checkpoints.is_due(can_save_next=can_save_next))):
            return False
        if self._can_save:
            if iteration == progress.batches or iteration % len(self._replicas):
                return False
            rng_state = get_rng_state(self._replicas.devices)
            self._state.streams.save(progress.split)
            if self._stream is not None and not self._stream.has_next():
                return False
            self._save(iteration, progress, meter, rng_state)
        stops = is_asked and (self._can_save or progress.split is Split.TRAIN)
        if stops:
            log.info("Interrupted in epoch %d, %s batch %d.", progress.epoch, progress.split, iteration)
        return stops

    def _prepare(self, meter: Meter) -> None:
        meter.check_state()
        if self._checkpoints is not None:
            self._checkpoints.prepare(self._state.checkpoint())

    def _save(self, iteration: int, progress: Progress, meter: Meter, rng_state: dict[str, Any]) -> None:
        try:
            sums = meter.state_dict()
        except TypeError as error:
            self._can_save = False
            log.warning("no checkpoint can be written within an epoch: %s", error)
            return
        position = LoopPosition(
            epoch=progress.epoch,
            split=progress.split,
            iteration=iteration,
            items=progress.items,
            before=self._rng_state,
            now=rng_state,
            sums=sums,
            logs=self._observers.log_positions(),
            buffers=self._replicas.buffers(),
        )
        if self._checkpoints is not None:
            self._checkpoints.save_step(self._state.checkpoint(position))


def _set_position(loader: Any, position: LoopPosition) -> int:
    """Move *loader* to *position*; return the number of batches to skip, if it has no ``set_position``."""
    if not hasattr(loader, "set_position"):
        return position.iteration
    loader.set_position(position.iteration)
    return 0


def _warn_of_devices(position: LoopPosition, devices: tuple[torch.device, ...]) -> None:
    mismatch = describe_device_mismatch(position.now["devices"], device_names(devices))
    if mismatch:
        log.warning("%s", mismatch)


def _skip(batches: Iterator[Any], number: int) -> None:
    """Draw the first *number* of *batches*. Raises `CheckpointError` if there are fewer."""
    missing = object()
    for count in range(number):
        if next(batches, missing) is missing:
            raise CheckpointError(
                f"the loader ended after {count} batches, but the checkpoint resumes after batch {number}: "
                "it was saved with other data or another batch size. Use the same loader as before"
            )
