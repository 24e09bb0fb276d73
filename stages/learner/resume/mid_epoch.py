"""Checkpoints between two batches of an epoch, and the resume at such a position."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch

from stages.contracts.errors import CheckpointError
from stages.contracts.events import Interrupter, Progress
from stages.contracts.history import Split
from stages.devices.rng import (
    HostRandomState,
    describe_device_mismatch,
    device_names,
    get_rng_state,
    seed_generators,
    set_rng_state,
)
from stages.distributed import Agreement
from stages.learner.assembly import Components
from stages.learner.batches import (
    Division,
    Loader,
    LoaderOptions,
    find_batch_sizes,
    iterate_rank,
    loads_shares,
)
from stages.learner.loader_parts import set_loader_epoch
from stages.learner.metering import Meter
from stages.learner.resume.training_state import load_training_state, training_state
from stages.learner.run_state import LoopPosition
from stages.learner.streams import Lookahead, has_exact_length

log = logging.getLogger(__name__)


class MidEpochCheckpointer:
    """Opens the loader of each split at the right batch, and saves the run between two batches."""

    def __init__(self, components: Components) -> None:
        self._state = components.state
        self._observers = components.observers
        self._group = components.group
        self._device = components.device
        self._checkpoints = components.checkpoints
        self._interrupter: Interrupter = components.interrupter
        self._agreement = Agreement(components.group) if components.group.size > 1 else None
        self._rng_state: dict[str, Any] = {}
        self._shared: HostRandomState | None = None
        """The random state in which all ranks load the same batches."""
        self._batch_sizes: list[int] = []
        self._limits = components.options.limit_batches
        self._stream: Lookahead | None = None
        """The batches of a loader without an exact length."""
        self._can_save = components.options.recorder is not None
        saves = components.options.interval.saves_within_epochs and components.checkpoints is not None
        self._unchecked = set(Split) if saves else set()
        self._is_state_checked = components.checkpoints is None

    def open(self, loader: Loader, epoch: int, split: Split, *, defers: bool = False) -> Iterator[Any]:
        """Return an iterator over the batches of *loader* from the position in the epoch, on the device.

        With *defers*, a batch may be a `DeferredBatch`. The batches are drawn in the random state of an
        uninterrupted run. Raises `CheckpointError` if the loader ends before the position, or has batches of
        another size.
        """
        position, devices = self._state.position, [self._device]
        set_loader_epoch(loader, epoch, self._state.derive_seed(epoch, split))
        is_restored = self._state.streams.is_restored(split)
        self._batch_sizes = find_batch_sizes(loader)[:1]
        if position is not None:
            _check_batch_size(self._batch_sizes, position)
        skip = _set_position(loader, position) if position and not is_restored else 0
        saved = None if position is None else self._read_rank(position)
        if saved is not None:
            if (compiled := self._state.compiled_shapes) is not None:
                compiled.first = dict(saved.get("shapes", {}))
            if mismatch := describe_device_mismatch(saved["now"]["devices"], device_names(devices)):
                log.warning("%s", mismatch)
            set_rng_state(saved["before"], devices)
        self._rng_state = get_rng_state(devices)
        first = position.iteration if position and not skip else 0
        loads_whole = self._group.size > 1 and not loads_shares(loader)  # each rank loads all samples
        self._shared = self._open_shared(split) if loads_whole else None
        division = Division(self._group, first, self._state.is_sharded, self._shared, defers)
        batches = iter(iterate_rank(loader, self._device, division))
        self._stream = None if has_exact_length(loader) else Lookahead(batches)
        batches = batches if self._stream is None else self._stream
        if position is not None:
            _skip(batches, skip)
            self._restore_shared(position)
        if saved is not None:
            set_rng_state(saved["now"], devices)
        return batches

    def stops_after(self, iteration: int, progress: Progress, meter: Meter) -> bool:
        """Save if a checkpoint is due after batch *iteration*; return whether the run stops here.

        After the last batch of a split the run continues: the end of the epoch is near and is saved too. If
        nothing can be saved, a run stops in training, but finishes a validation, whose epoch is then kept.
        Several ranks save when they have updated the model, so that no rank has gradients of its own.
        Raises `BuilderError` after the first batch of a split if checkpoints are written at an interval and
        the value of a metric cannot be saved, and `RecordError` after the first update if the state of the
        optimizer cannot.
        """
        if self._unchecked or not self._is_state_checked:
            self._check_once(progress, meter)
        can_save_next = not progress.batches or iteration + 1 < progress.batches
        is_due = self._checkpoints is not None and self._checkpoints.is_due(can_save_next=can_save_next)
        is_asked = self._interrupter.should_stop()
        if self._agreement is not None:  # what all ranks have agreed on
            is_asked, is_due = self._agreement.poll(stop=is_asked, save=is_due)
        if not (is_asked or is_due):
            return False
        if self._can_save:
            if iteration in (progress.batches, self._limits.get(progress.split)):
                return False
            if self._group.size > 1 and self._state.window.batches:
                return False
            states = self._read_states()
            self._state.streams.save(progress.split)
            if self._stream is not None and not self._stream.has_next():
                return False
            self._save(iteration, progress, meter, states)
            if self._agreement is not None:
                self._agreement.end_save()
        stops = is_asked and (self._can_save or progress.split is Split.TRAIN)
        if stops:
            self._interrupter.obey()  # another rank may have been asked
            log.info("Interrupted in epoch %d, %s batch %d.", progress.epoch, progress.split, iteration)
        return stops

    def _read_states(self) -> dict[str, Any]:
        """Return the random states after a batch, and the shapes that were compiled first."""
        states = {"now": get_rng_state([self._device])}
        if (compiled := self._state.compiled_shapes) is not None:
            states["shapes"] = dict(compiled.first)
        if self._shared is not None:
            states["loader"] = self._shared.state
        return states

    def stops_between_epochs(self) -> bool:
        """Return whether the run stops here, because any rank was asked to."""
        stops = self._group.any(self._interrupter.should_stop())
        if stops:
            self._interrupter.obey()
        return stops

    def close(self) -> None:
        """Wait for the last exchange of the ranks."""
        if self._agreement is not None:
            self._agreement.close()

    def _check_once(self, progress: Progress, meter: Meter) -> None:
        """Check the state after the first update, and the metrics after the first batch of a split."""
        if not (self._is_state_checked or self._state.window.batches):
            self._is_state_checked = True
            self._state.checkpoint()
        if progress.split in self._unchecked and self._checkpoints is not None:
            meter.check_state()
            self._checkpoints.prepare(self._state.checkpoint())
            self._unchecked.remove(progress.split)

    def _read_rank(self, position: LoopPosition) -> Mapping[str, Any] | None:
        """Return the random state of this rank at *position*, and restore its buffers and training state.

        A rank that was not saved draws numbers that depend on the position, and None is returned.
        """
        rank = self._group.rank
        if not rank:
            return {"before": position.before, "now": position.now, "shapes": position.shapes}
        if rank > len(position.ranks):
            path = (position.epoch, position.split, position.iteration, "rank", rank)
            seed_generators(self._state.derive_seed(*path))
            return None
        saved = position.ranks[rank - 1]
        model = self._state.model.model
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), saved["buffers"], strict=False):
                buffer.copy_(value)
        if "training_state" in saved:
            load_training_state(model, saved["training_state"])
        return saved

    def _open_shared(self, split: Split) -> HostRandomState:
        """Return the random state in which all ranks load *split*, and save it as that of its start.

        It is that of rank 0 at the start of the epoch, which the training continues to the validation.
        """
        if self._state.position is not None:
            self._rng_state = dict(self._state.position.before)
        elif self._shared is not None and split is Split.VALID:
            self._rng_state = self._shared.state
        else:
            self._rng_state = cast(dict[str, Any], self._group.broadcast(self._rng_state))
        return HostRandomState(self._rng_state)

    def _restore_shared(self, position: LoopPosition) -> None:
        """Continue the random state of a loader that was restored at *position*, without drawing batches."""
        saved = position.ranks[0] if position.ranks else {}
        if self._shared is not None and "loader" in saved:
            self._shared.state = saved["loader"]

    def _gather_ranks(self, states: Mapping[str, Any]) -> list[Any]:
        """Return the `LoopPosition.ranks` of this position, on rank 0."""
        state: dict[str, Any] = {}
        if self._group.rank:
            model = self._state.model.model
            buffers = [buffer.detach() for buffer in model.buffers()]
            state = {"before": self._rng_state, **states, "buffers": buffers}
            if added := training_state(model):
                state["training_state"] = added
        return self._group.gather(state)[1:]

    def _save(self, iteration: int, progress: Progress, meter: Meter, states: dict[str, Any]) -> None:
        sums, error = None, None
        try:
            sums = meter.state_dict()
        except TypeError as failure:
            error = failure
        if self._group.any(error is not None):
            self._can_save = False
            if error is not None:
                log.warning("no checkpoint can be written within an epoch: %s", error)
            return
        ranks = self._gather_ranks(states)
        if self._checkpoints is None:
            return
        position = LoopPosition(
            epoch=progress.epoch,
            split=progress.split,
            iteration=iteration,
            items=progress.items,
            before=self._rng_state,
            now=states["now"],
            shapes=states.get("shapes", {}),
            sums=sums or {},
            logs=self._observers.log_positions(),
            ranks=ranks,
            batch_sizes=self._batch_sizes,
        )
        self._checkpoints.save_step(self._state.checkpoint(position))


def _check_batch_size(sizes: Sequence[int], position: LoopPosition) -> None:
    """Raise `CheckpointError` if the first batch had another size: the next one would repeat samples."""
    if sizes and position.batch_sizes and list(position.batch_sizes) != sizes:
        raise CheckpointError(
            f"cannot resume {position}: it had batches of {position.batch_sizes[0]} samples, and those of "
            f"this loader have {sizes[0]}. Use the batch size of the checkpoint, or another directory"
        )


def _set_position(loader: Any, position: LoopPosition) -> int:
    """Move *loader* to *position*; return the number of batches to skip, if it has no ``set_position``."""
    set_position = LoaderOptions.of(loader).set_position
    if set_position is None:
        return position.iteration
    set_position(position.iteration)
    return 0


def _skip(batches: Iterator[Any], number: int) -> None:
    """Draw the first *number* of *batches*. Raises `CheckpointError` if there are fewer."""
    missing = object()
    for count in range(number):
        if next(batches, missing) is missing:
            raise CheckpointError(
                f"the loader ended after {count} batches, but the checkpoint resumes after batch {number}: "
                "it was saved with other data or another batch size. Use the same loader as before"
            )
