"""The training loop.

At the start of each epoch the random state and the order of the samples are set from (seed, epoch). Every
batch is a step of the learning rate schedule, a forward and backward pass, and, if the accumulation window is
full, a step of the optimizer. The epoch ends with validation, the history, the checkpoint, its retention, and
early stopping. After any batch a checkpoint may be written; an interrupted run resumes with the next batch.
"""

import logging
from contextlib import suppress
from copy import deepcopy
from itertools import islice
from typing import Any

import torch
from torch import nn

from stages.contracts.errors import BuilderError, CheckpointError
from stages.contracts.events import Progress, Renderers
from stages.contracts.history import Split, Value
from stages.devices.memory import retain_freed_memory
from stages.devices.run_ahead_limiter import RunAheadLimiter
from stages.distributed import has_synchronized_norms, warn_of_single_samples
from stages.learner.assembly import Components
from stages.learner.batches import (
    Division,
    Loader,
    LoaderOptions,
    check_workers,
    find_batch_sizes,
    iterate_rank,
    reset_share,
)
from stages.learner.checks import (
    RuleOptions,
    StepChecks,
    check_reason,
    check_rules_without_validation,
    find_valid_metrics,
)
from stages.learner.loader_parts import check_repeatable
from stages.learner.metering import Meter
from stages.learner.resume.mid_epoch import MidEpochCheckpointer
from stages.learner.resume.training_state import load_training_state, training_state
from stages.learner.steps.cuda_graph import CudaGraphStep, build_captured_step
from stages.learner.steps.rank_step import (
    RankStep,
    ShardedStep,
    SynchronizedStep,
    synchronize_average,
    synchronize_ranks,
    synchronize_training_state,
)
from stages.learner.steps.step_strategies import Buffers, LbfgsStep, PlainStep, StepResult
from stages.learner.streams import check_streams, count_batches, no_batches
from stages.models import ClassificationStep
from stages.optim import RunLength, Scheduler
from stages.optim.scheduler import build_step

log = logging.getLogger(__name__)


class Loop:
    """Runs the remaining epochs."""

    def __init__(self, components: Components) -> None:
        self._options = components.options
        self._state = components.state
        self._observers = components.observers
        self._checkpoints = components.checkpoints
        self._interrupter = components.interrupter
        self._device = components.device
        self._group = components.group
        self._mid_epoch = MidEpochCheckpointer(components)
        model = self._state.model
        self._hooks = model.hooks
        self._checks = StepChecks(model.model, model.optimizer)
        self._valid_step = self._state.wrap_step(model.model.valid_step, Split.VALID)
        self._limiter = RunAheadLimiter.of(components.device)
        self._strategy = build_captured_step(components, self._checks) or self._choose_strategy()
        self._meter = self._observers.meter(Split.TRAIN, 0, self._state.guard)
        self._progress = Progress(
            self._options.num_epochs,
            label=self._options.label,
            first_epoch=self._state.epoch + 1,
            shown=self._observers.display_options(),
            interrupter=self._interrupter,
        )

    def describe_position(self) -> str:
        """Return the last batch whose values were read from the device."""
        return self._meter.describe_position()

    def _choose_strategy(self) -> PlainStep:
        state = self._state
        kind: type[PlainStep] = LbfgsStep if state.model.needs_closure else PlainStep
        if state.is_sharded:
            kind = ShardedStep
        elif self._group.size > 1:
            kind = SynchronizedStep if has_synchronized_norms(state.model.model) else RankStep
        return kind(state, self._checks)

    def run(self, train: Loader, valid: Loader | None) -> nn.Module:
        """Train on *train*, validate on *valid*, if any, after each epoch, and return the trained model."""
        self._interrupter.begin_run()
        loaders = {Split.TRAIN: train} if valid is None else {Split.TRAIN: train, Split.VALID: valid}
        if any(count_batches(loader) == 0 for loader in loaders.values()):
            raise no_batches()
        if valid is None:
            self._check_without_validation()
        check_workers(*loaders.values())
        warn_of_single_samples(self._state.model.model, find_batch_sizes(train), self._group.size)
        self._check_schedule(self._count_batches(train, Split.TRAIN))
        if self._checkpoints is not None:
            check_streams(loaders)
            check_repeatable(*loaders.values())
        self._state.streams.restore(loaders)
        if valid is not None and self._options.sanity_check and self._state.resumed is None:
            with self._state.streams.keep_position(Split.VALID):
                self._check_validation(valid)
        if not self._state.is_sharded:  # otherwise gathered parameters would stay in memory
            retain_freed_memory()
        first, is_complete = self._state.epoch + 1, False
        model: nn.Module = self._state.model.model
        try:
            _set_ignored_targets(model, *loaders.values())
            self._observers.start(self._progress)
            self._remove_later_output()
            if self._state.position or not self._stops_early():
                for epoch in range(first, self._options.num_epochs + 1):
                    if not self._run_epoch(train, valid, epoch):
                        break
            self._mid_epoch.close()
            is_complete = True
        finally:
            if is_complete or self._group.size == 1:  # otherwise the other ranks may not take part
                with suppress(Exception):  # the exception that ended the run is the one to report
                    self._meter.flush()
            self._observers.close()
            reset_share(loaders.values())
            _set_ignored_targets(model)
        return model

    @torch.no_grad()
    def _check_validation(self, loader: Loader) -> None:
        """Validate on the first batches of *loader*, and discard the values and changes of the model."""
        split = Split.VALID
        model = self._state.model.model.eval()
        buffers = Buffers(model)
        buffers.save()
        state = deepcopy(training_state(model))
        metrics = [
            (metric, ())
            for metric in self._observers.metrics[split]
            if not (metric.telemetry or metric.covers_pass)
        ]
        meter = Meter(metrics, Renderers([]), split, 1)
        division = Division(self._group, fills_empty=self._state.is_sharded)
        batches = iter(iterate_rank(loader, self._device, division))
        for iteration, batch in enumerate(islice(batches, self._options.sanity_check), start=1):
            meter.measure(self._strategy.validate(self._run_valid_step, batch).item, iteration, 0.0)
        meter.finish()
        buffers.restore()
        load_training_state(model, state)

    def _check_schedule(self, batches: int) -> None:
        """Have the schedule check or use the length of the run; 0 *batches* of an epoch are unknown."""
        set_length = RuleOptions.of(self._state.model.scheduler).set_length
        if batches and set_length is not None:
            set_length(RunLength(self._options.num_epochs, batches, self._options.accumulation))

    def _check_without_validation(self) -> None:
        """Raise `BuilderError` if something in the run needs a validation."""
        options, position = self._options, self._state.position
        check_rules_without_validation(options.early_stopping, options.retention, self._state.model.scheduler)
        if position is not None and position.split is Split.VALID:
            raise BuilderError(
                f"cannot resume {position} without a valid loader: pass the same loaders to fit as before"
            )

    def _run_epoch(self, train: Loader, valid: Loader | None, epoch: int) -> bool:
        """Train, validate and save; return whether the run continues."""
        position = self._state.position
        step = position.iteration if position else 0
        self._hooks.begin_epoch(epoch, step)
        self._state.begin_epoch(epoch)
        self._state.seed_generators(epoch)
        if position is None or position.split is Split.TRAIN:
            with self._strategy.training():
                is_complete = self._train(train, epoch)
            if not is_complete:
                return False
            step = 0
        # a validation that was interrupted is completed, even if the run no longer validates after this epoch
        is_validated = self._is_validated(epoch) or (position is not None and position.split is Split.VALID)
        if valid is not None and is_validated:
            self._state.model.model.eval()
            self._hooks.call("before_validation", step)
            with self._state.model.apply_average():
                is_complete = self._validate(valid, epoch)
            if not is_complete:
                return False
            self._hooks.call("after_validation")
        self._finish(epoch)
        return not (self._stops_early() or self._mid_epoch.stops_between_epochs())

    def _train(self, loader: Loader, epoch: int) -> bool:
        """Train on *loader* once; return whether the pass was completed.

        No step runs inside `map` or a generator, which would take a StopIteration of the model for the end.
        """
        log.info("Executing training step for epoch %d", epoch)
        strategy, progress, window = self._strategy, self._progress, self._state.window
        schedule, stops_after = self._state.model.scheduler, self._hooks.follow(self._mid_epoch.stops_after)
        meter, rate = self._begin(Split.TRAIN, loader, epoch), 0.0
        next_rate = continue_window = build_step(schedule)
        if isinstance(schedule, Scheduler) and schedule.counts_updates:
            continue_window = schedule.continue_window
        first = iteration = progress.batch
        batches = self._open(loader, meter)  # a variable, so that an error keeps it: see report_device_errors
        for batch in batches:
            iteration += 1
            rate = continue_window() if window.batches else next_rate()
            result = strategy.step(batch, rate, epoch=epoch, iteration=iteration)
            del batch  # free its memory before the next one is loaded
            if result.is_skipped:
                meter.skip(result.item, iteration, rate)
            else:
                self._measure(meter, result, iteration=iteration, rate=rate)
            del result  # free its output before the next one is computed
            if window.batches >= window.length:
                strategy.update(window.take(), rate, epoch=epoch, iteration=iteration)
            if stops_after(iteration, progress, meter):
                return False
        self._check_pass(first, iteration)
        self._end_training(rate, epoch=epoch, iteration=iteration)
        self._end(meter)
        return True

    def _end_training(self, rate: float, *, epoch: int, iteration: int) -> None:
        """Update the model with what the window still holds, and end the training of *epoch* on all ranks."""
        window, model = self._state.window, self._state.model
        self._strategy.update(window.end_epoch(), rate, epoch=epoch, iteration=iteration)
        window.collect()
        synchronize_ranks(self._group, model.model, epoch, has_shards=self._state.is_sharded)
        model.end_training(epoch)
        synchronize_average(self._group, model)

    @torch.no_grad()  # not inference_mode: training may use tensors that a model keeps from here
    def _validate(self, loader: Loader, epoch: int) -> bool:
        """Validate on *loader* once; return whether the pass was completed."""
        log.info("Executing validation step for epoch %d", epoch)
        meter = self._begin(Split.VALID, loader, epoch)
        first = iteration = self._progress.batch
        batches = self._open(loader, meter)
        for batch in batches:
            result = self._strategy.validate(self._run_valid_step, batch)
            del batch  # free its memory before the next one is loaded
            iteration += 1
            self._measure(meter, result, iteration=iteration)
            if self._mid_epoch.stops_after(iteration, self._progress, meter):
                return False
        self._check_pass(first, iteration)
        self._end(meter)
        return True

    def _run_valid_step(self, batch: Any) -> Any:
        return self._checks.check_valid_step(self._valid_step(batch))

    def _finish(self, epoch: int) -> None:
        """Finish *epoch*: flush the logs, show its values, and save."""
        state = self._state
        self._hooks.call("after_epoch")
        state.model.check_parameters()
        synchronize_training_state(self._group, state.model.model)
        state.finish_epoch(epoch, is_validated=self._is_validated(epoch))
        self._observers.flush()
        self._observers.renderer.epoch_end(self._progress, state.history)
        if self._checkpoints is not None:
            self._checkpoints.save_epoch(epoch, state.checkpoint(), state.history)

    def _stops_early(self) -> bool:
        """Return whether the early stopping rule of any rank applies to the history, of a resumed run too."""
        rule, epoch = self._options.early_stopping, self._state.epoch
        if rule is None or not epoch or (find_valid_metrics(rule) and not self._is_validated(epoch)):
            return False
        reason = rule.reason(self._state.history)
        check_reason(rule, reason)
        if reason:
            log.info("Stopping training loop, %s", reason)
        return self._group.any(reason is not None)

    def _is_validated(self, epoch: int) -> bool:
        return epoch % self._options.validate_every == 0

    def _remove_later_output(self) -> None:
        """Remove what was logged and saved after the position that the run resumes at."""
        state, position = self._state, self._state.position
        if position is None:
            self._observers.remove_logs_after(state.epoch)
        else:
            self._observers.resume_logs(position.epoch, position.logs)
        if self._checkpoints is not None and state.is_restored and self._options.checkpoint == "auto":
            self._checkpoints.apply_retention(state.epoch, state.history)

    def _begin(self, split: Split, loader: Loader, epoch: int) -> Meter:
        """Return the meter of a pass over *loader*, and set the progress to where the pass begins."""
        meter = self._meter = self._observers.meter(split, epoch, self._state.guard)
        progress, position = self._progress, self._state.position
        if epoch != progress.epoch:
            progress.telemetry = {}
        progress.split, progress.epoch = split, epoch
        progress.batches = self._count_batches(loader, split)
        progress.batch, progress.items = (position.iteration, position.items) if position else (0, 0)
        progress.running, progress.latest = meter.running, meter.latest
        meter.begin()
        if position is not None:
            meter.load_state_dict(position.sums)
        return meter

    def _open(self, loader: Loader, meter: Meter) -> Any:
        """Return the batches of *loader* from the position in the epoch, which is reached then."""
        split, position = self._progress.split, self._state.position
        defers = isinstance(self._strategy, CudaGraphStep) and split is Split.TRAIN
        batches: Any = self._mid_epoch.open(loader, self._progress.epoch, split, defers=defers)
        if (limit := self._options.limit_batches.get(split)) is not None:
            batches = islice(batches, max(0, limit - (position.iteration if position else 0)))
        self._state.position = None
        return meter.watch(batches)

    def _count_batches(self, loader: Loader, split: Split) -> int:
        """Return the number of batches in a pass over *loader*; 0 if it is not known."""
        limits = count_batches(loader), self._options.limit_batches.get(split)
        return min((limit for limit in limits if limit is not None), default=0)

    def _measure(self, meter: Meter, result: StepResult, *, iteration: int, rate: float = 0.0) -> None:
        meter.measure(result.item, iteration, rate, result.measured)
        if self._limiter is not None:
            self._limiter.step()
        progress = self._progress
        progress.batch = iteration
        progress.items += result.samples
        self._observers.renderer.step(progress)

    def _check_pass(self, first: int, iteration: int) -> None:
        """Raise `BuilderError`, or `CheckpointError` in a resumed pass, if it had no batch after *first*."""
        if not iteration:
            raise no_batches()
        if iteration == first:
            raise CheckpointError(
                f"cannot resume in epoch {self._progress.epoch}, after batch {first} of "
                f"{self._progress.split}: there is no batch after it. Use the loader and the limit of "
                "batches of the checkpoint until the epoch has ended"
            )

    def _end(self, meter: Meter) -> None:
        """Add the values of the pass to the history."""
        for name, value in meter.finish().items():
            self._state.history.add(Value(self._progress.epoch, self._progress.split, name, value))
        self._progress.telemetry[self._progress.split] = meter.telemetry


def _set_ignored_targets(model: nn.Module, *loaders: Loader) -> None:
    """Have *model* count the targets of each batch, unless no target of *loaders* is ignored."""
    if isinstance(model, ClassificationStep):
        has_ignored = [LoaderOptions.of(loader).has_ignored_targets for loader in loaders]
        model.has_ignored_targets = not has_ignored or any(has_ignored)
