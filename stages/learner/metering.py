"""Measurement of each batch with the metrics, whose values are added and logged."""

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import getattr_static
from itertools import chain, islice
from typing import Any, cast

from stages.contracts.burn import Version
from stages.contracts.errors import BuilderError
from stages.contracts.events import (
    BareLogger,
    MetricLogger,
    NoRenderer,
    Renderer,
    SampleLogger,
    Step,
    Values,
    iterate_batches,
    log_batches,
)
from stages.contracts.history import Split
from stages.contracts.step_log import MAX_SAMPLES, LoggedSample, StepLog, current_log
from stages.contracts.user_code import place_of
from stages.distributed import ONE_RANK, RankGroup
from stages.learner.registered_metric import MeteredMetric, RegisteredMetric
from stages.learner.steps.rank_values import (
    NO_VALUE,
    HostTransfer,
    add_rank_values,
    encode_value,
    transfer_to_host,
)
from stages.metrics import (
    BurnMetric,
    Collector,
    Mean,
    MetricMethods,
    MetricState,
    ScalarMetric,
    measure_scalar,
)
from stages.metrics.state import add_states, load_state, read_values
from stages.optim import Guard
from stages.records import decode_state

MAX_PENDING_BATCHES = 64
"""Batches that are measured before their values are read and added: on an accelerator each read waits."""
MAX_READ_DELAY = 8
"""Later batches that an accelerator computes while their values are copied, added and logged."""
NOTHING: Mapping[str, MetricState] = {}
LOGGED = "/logged"
"""The key of what steps have logged in the state of a meter; no metric has a slash in its name."""
Columns = Mapping[str, Sequence[MetricState]]
"""The values of batches by metric, in the order of the batches."""
Measure = tuple[str, Callable[[Any], MetricState | None], list[Any]]
"""The name of a metric, its method or its collector, and the values, None for later ones."""


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PendingValues:
    """The values of batches whose copy to the host is in progress."""

    iterations: Sequence[int]
    columns: Columns
    transfer: HostTransfer
    last: int
    """The number of the last of the batches."""


class Meter:
    """Measures and sums the batches of one split in one epoch, and logs their values in groups."""

    def __init__(
        self,
        metrics: Sequence[MeteredMetric],
        renderer: Renderer,
        split: Split,
        epoch: int,
        guard: Guard | None = None,
        group: RankGroup = ONE_RANK,
        *,
        burn: Version | None = None,
        is_test: bool = False,
        log_loggers: Sequence[MetricLogger] = (),
    ) -> None:
        """Measure with *metrics*; what steps log beside their outputs is passed to *log_loggers*."""
        self._group = group
        self._step_log = StepLog(MAX_SAMPLES if group.is_main else 0)
        self._entries = self._step_log.entries
        self._logged: dict[str, dict[int, Mean]] = {}
        """The pending numbers that no metric has, by name and batch."""
        self._log_loggers = log_loggers
        self._sample_loggers = [logger for logger in log_loggers if isinstance(logger, SampleLogger)]
        self._scalars = {metric.name for metric, _ in metrics if isinstance(metric.metric, ScalarMetric)}
        self._burn = burn
        self._is_test = is_test
        self._batches = 0
        """The number of pending batches, also without a sample of this rank."""
        self._iteration = self._flushed = 0
        """The numbers of the last batch, and of the last whose values were read."""
        self._rate = 0.0
        """The learning rate of the last batch."""
        self._metrics = [metric for metric, _ in metrics]
        for metric, _ in metrics:
            if isinstance(metric.metric, BurnMetric):
                metric.metric.burn = burn
        self._pass_metrics: list[Any] = [metric.metric for metric in self._metrics if metric.covers_pass]
        self._loggers = {metric.name: loggers for metric, loggers in metrics}
        self._renderer = renderer
        self._has_curves = not isinstance(renderer, NoRenderer) or type(renderer).log is not NoRenderer.log
        self._split = split
        self._epoch = epoch
        self._telemetry_names = {metric.name for metric in self._metrics if metric.telemetry}
        self._own_values = {metric.name for metric in self._metrics if metric.is_equal_on_ranks}
        self._measures: list[Measure] = []
        self._are_values_checked = False
        self._collectors: dict[str, Collector] = {}
        self._guard = guard
        self._iterations: list[int] = []
        """The batches whose values are pending."""
        self._in_transfer: PendingValues | None = None
        self._sums: dict[str, MetricState] = {}
        self._latest: dict[str, MetricState] = {}
        self._resumed: dict[str, Any] = {}
        self._earlier: dict[str, MetricState] = {}
        self.telemetry: dict[str, float] = {}
        """The values of telemetry metrics over the pass; empty before `finish`."""

    def begin(self) -> None:
        """Start the metrics of the pass, before its loader is opened, and receive what its steps log."""
        current_log.set(self._step_log)
        for metric in self._pass_metrics:
            metric.begin()

    def watch(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return *batches*, iterated over by the metrics of the pass that watch them."""
        for metric in self._pass_metrics:
            if (watch := MetricMethods.of(metric).watch) is not None:
                batches = watch(batches)
        return batches

    def measure(
        self, item: Any, iteration: int, learning_rate: float, known: Mapping[str, MetricState] = NOTHING
    ) -> None:
        """Measure and add one batch, of which *known* has values that are measured already.

        *item* is None if this rank has no sample of the batch. Raises `BuilderError` on the first that a
        metric cannot measure.
        """
        self._iteration, self._rate = iteration, learning_rate
        if item is not None:
            if self._entries:
                known = {**known, **self._take_entries(item, iteration)}
            for name, measure, values in self._measures or self._find(item):
                values.append(known[name] if name in known else measure(item))
            self._iterations.append(iteration)
            if not self._are_values_checked:
                self._check_values()
        else:
            self._step_log.discard()
        self._batches += 1
        if self._batches >= MAX_PENDING_BATCHES:
            self._start_transfer()
        elif self._in_transfer is not None and self._batches >= MAX_READ_DELAY:
            self._finish_transfer()

    def skip(self, item: Any, iteration: int, learning_rate: float) -> None:
        """Discard what the step of a batch has logged whose *item* is not measured.

        The sums that the pass resumes with get the types of the values of *item*: it may be the last batch.
        """
        self._iteration, self._rate = iteration, learning_rate
        self._step_log.discard()
        if not self._resumed or item is None:
            return
        for metric in self._metrics:
            name = metric.name
            if name in self._resumed and name not in self._sums:
                measure: Any = self._measure_of(metric)
                self._sums[name] = load_state(self._resumed[name], measure(item), name)

    def _measure_of(self, metric: RegisteredMetric) -> Callable[[Any], MetricState] | None:
        """Return the function that measures an item with *metric*; None for a `PassMetric`."""
        measure_step = metric.methods.measure_step
        if measure_step is None:
            return metric.methods.measure
        return lambda item: measure_step(Step(item, self._split, self._epoch, self._iteration, self._rate))

    def _take_entries(self, item: Any, iteration: int) -> dict[str, Mean]:
        """Log the samples of a step, keep its numbers, and return those that metrics of these names have."""
        entries, known = self._entries.copy(), {}
        self._entries.clear()
        for entry in entries:
            if isinstance(entry, LoggedSample):
                for logger in self._sample_loggers:
                    logger.log_sample(self._epoch, entry)
                continue
            mean = measure_scalar(entry.name, entry.value, entry.weight, item)
            if entry.name not in self._loggers:
                self._logged.setdefault(entry.name, {})[iteration] = mean
            elif entry.name in self._scalars:
                known[entry.name] = mean
            else:
                raise BuilderError(f"a step logs {entry.name!r}, the name of a metric. Use another name")
        return known

    def _find(self, item: Any) -> list[Measure]:
        """Set and return how each metric measures an *item*."""
        for metric in self._metrics:
            measure: Any = self._measure_of(metric)
            if measure is None:
                continue
            metric.check_output(item)
            build = metric.methods.build_collector
            if build is not None and (collector := build()) is not None:
                measure, self._collectors[metric.name] = collector.add, collector
            self._measures.append((metric.name, measure, []))
        return self._measures

    def _check_values(self) -> None:
        """Raise `BuilderError` if a metric has returned something else than the measurement of a batch."""
        self._are_values_checked = True
        for metric in self._metrics:
            values = next((values for name, _, values in self._measures if name == metric.name), [])
            if not values or metric.name in self._collectors:
                continue
            if any(getattr_static(values[-1], name, None) is None for name in ("value", "count")):
                kind, method = type(metric.metric), metric.methods.measure_step or metric.methods.measure
                raise BuilderError(
                    f"metric {metric.name!r}: {kind.__name__}.measure{place_of(method)} returned "
                    f"{type(values[-1]).__name__}: return a Mean, for example Mean.from_sum(total, count)"
                )

    def _pending(self) -> dict[str, list[MetricState]]:
        """Return the pending values, after the collectors have measured theirs."""
        for name, _, values in self._measures:
            if (collector := self._collectors.get(name)) is not None:
                collected = iter(collector.measure())
                values[:] = [next(collected) if value is None else value for value in values]
        pending = {name: values for name, _, values in self._measures if values}
        for name, by_batch in self._logged.items():
            pending[name] = [by_batch.get(iteration, NO_VALUE) for iteration in self._iterations]
        return pending

    def describe_position(self) -> str:
        """Return the last batch whose values were read, 0 before the first in this process."""
        return f"batch {self._flushed} of epoch {self._epoch} ({self._split})"

    def state_dict(self) -> dict[str, Any]:
        """Log all pending values, and return the sum of every metric as a tree that a record can hold.

        Rank 0 returns the sums of all ranks, and the others none.
        Raises `TypeError` for a sum that cannot be saved.
        """
        self.flush()
        if not self._group.is_main:
            return {}
        state = {name: encode_value(total, name) for name, total in self._totals().items()}
        logged = {name: state.pop(name) for name in list(state) if name not in self._loggers}
        if self._step_log.is_used:
            state[LOGGED] = {"sums": logged, "samples": dict(self._step_log.counts)}
        return state

    def check_state(self) -> None:
        """Raise `BuilderError` for a metric whose sum cannot be saved, without logging any value."""
        for name, total in self._totals().items():
            try:
                encode_value(total, name)
            except TypeError as error:
                raise BuilderError(
                    f"{error}. Or write no checkpoints within an epoch: set fit.checkpoint_every_steps and "
                    "fit.checkpoint_every_seconds to null, or call checkpoint_every() without arguments"
                ) from None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from *state*. It is added after the next batch, whose values have the types of the sums."""
        self._resumed = decode_state(dict(state))
        if (logged := self._resumed.pop(LOGGED, None)) is not None:
            self._step_log.is_used = True
            self._step_log.counts.update(logged["samples"])
            sums = logged["sums"].items()
            self._sums = {name: load_state(total, NO_VALUE, name) for name, total in sums}
        self._warn_of_new_metrics()
        for metric in self._pass_metrics:
            if metric.name in self._resumed:
                self._earlier[metric.name] = load_state(
                    self._resumed.pop(metric.name), metric.read(), metric.name
                )

    def _warn_of_new_metrics(self) -> None:
        """Log a warning for each metric that has no sum of the batches before the position."""
        of_pass = {metric.name for metric in self._metrics if metric.covers_pass}
        if not (self._group.is_main and self._resumed.keys() - of_pass):  # no batch was measured before
            return
        for name in [metric.name for metric in self._metrics if not metric.telemetry]:
            if name not in self._resumed and name not in of_pass:
                log.warning(
                    "the checkpoint has no sum of the metric %r: its %s value of epoch %d covers only the "
                    "batches that follow. Register it after the epoch to measure all of them",
                    name,
                    self._split,
                    self._epoch,
                )

    def _totals(self) -> dict[str, MetricState]:
        """Return the sum of every metric over the pass so far."""
        totals = self._add(self._unread())
        for metric in self._pass_metrics:
            measured = metric.read()
            earlier = self._earlier.get(metric.name)
            totals[metric.name] = measured if earlier is None else earlier + measured
        return totals

    def _unread(self) -> Columns:
        """Return the values that are not in the sums yet, on the host."""
        columns = self._pending()
        for name, values in self._in_transfer.columns.items() if self._in_transfer else ():
            columns[name] = [*values, *columns.get(name, ())]
        return _split(columns, transfer_to_host(_join(columns)))

    def _add(self, columns: Columns) -> dict[str, MetricState]:
        """Return the sums with the values of *columns*, added in order."""
        sums = dict(self._sums)
        for name, values in columns.items():
            before = [sums[name]] if name in sums else []
            if not before and name in self._resumed:
                before = [load_state(self._resumed[name], values[0], name)]
            sums[name] = add_states([*before, *values])
        return sums

    def flush(self) -> None:
        """Log and show the value of every batch since the last call, if the batch has one.

        Several ranks add their values first; call this on all of them after the same batch.
        Raises `NonFiniteError` after the values of the batches before a bad one, if the guard of the run has
        found one on the device.
        """
        self._start_transfer()
        self._finish_transfer()

    def _start_transfer(self) -> None:
        """Finish the previous transfer, and start that of the pending values."""
        self._finish_transfer()
        columns = {name: values.copy() for name, values in self._pending().items()}
        iterations, self._iterations, self._batches = self._iterations, [], 0
        for *_, values in self._measures:
            values.clear()
        self._logged = {}
        flag = None if self._guard is None else self._guard.flag
        transfer = HostTransfer(_join(columns), flag)
        self._in_transfer = PendingValues(iterations, columns, transfer, self._iteration)
        if not transfer.is_asynchronous:
            self._finish_transfer()

    def _finish_transfer(self) -> None:
        """Log and show the values whose copy is in progress, if any."""
        if self._in_transfer is None:
            return
        pending, self._in_transfer = self._in_transfer, None
        hosted, is_flagged = pending.transfer.wait()
        columns, self._flushed = _split(pending.columns, hosted), pending.last
        if self._group.size > 1:
            columns = add_rank_values(self._group, pending.iterations, columns, self._own_values)
        if not self._group.is_main:
            return
        bad_iteration, error = self._find_error(pending.last, is_flagged=is_flagged)
        self._sums = self._add(columns)
        finite = bisect_left(pending.iterations, bad_iteration)
        logged: dict[str, Values] = {}
        for name in self._in_order(columns):
            values = columns[name]
            has_value = _has_batch_value(values[-1])
            is_optional = name not in self._loggers  # not each step logs it
            for value in reversed(values[:finite]):
                if not is_optional or value.count:
                    self._latest[name] = value
                    break
            if has_value is None or (has_value and self._burn != "0.22"):
                pairs = read_values(values[:finite])
                logged[name] = [pair if pair[1] else None for pair in pairs] if is_optional else pairs
        self._log([*pending.iterations[:finite]], logged)
        if error is not None:
            raise error

    def _in_order(self, names: Iterable[str]) -> list[str]:
        """Return *names*, with those that only steps log at the end, whichever was logged first."""
        return sorted(names, key=lambda name: "" if name in self._loggers else name)

    def _log(self, iterations: Sequence[int], columns: Mapping[str, Values]) -> None:
        """Log and show the value and the count of each metric on each of the batches *iterations*."""
        by_logger: dict[int, tuple[MetricLogger, dict[str, Values]]] = {}
        for name, values in columns.items():
            for logger in self._loggers.get(name, self._log_loggers):
                by_logger.setdefault(id(logger), (logger, {}))[1][name] = values
        for logger, columns_of_logger in by_logger.values():
            log_batches(logger, self._epoch, iterations, columns_of_logger)
        for _, batch in iterate_batches(iterations, columns) if self._has_curves else ():
            for name, (value, _) in batch.items():
                self._renderer.log(self._split, self._epoch, name, value)

    def _find_error(self, last: int, *, is_flagged: bool) -> tuple[float, Exception | None]:
        """Return the first bad batch and its error; infinity and None if all until *last* are finite."""
        if self._guard is None:
            return math.inf, None
        if is_flagged and (bad_step := self._guard.find_error()) is not None:
            return bad_step
        self._guard.forget_steps(last)
        return math.inf, None

    def finish(self) -> dict[str, float]:
        """Return the epoch's values of the numeric metrics, without telemetry; the same on every rank."""
        self.flush()
        if not self._group.is_main:
            return cast(dict[str, float], self._group.broadcast(None))
        self._sums, self._pass_metrics = self._totals(), []  # a pass metric may now begin another pass
        values = self.running()
        for name in self._in_order(self._sums):
            self._log_epoch(name, self._sums[name], values[name])
        self.telemetry = {name: values[name] for name in values if name in self._telemetry_names}
        names = [metric.name for metric in self._metrics if metric.numeric and not metric.telemetry]
        names += sorted(name for name in values.keys() - self._loggers.keys() if self._sums[name].count)
        results: dict[str, float] = {name: values[name] for name in names if name in values}
        current_log.set(None)
        self._group.broadcast(results)
        return results

    def _log_epoch(self, name: str, total: MetricState, value: float) -> None:
        """Log the *value* of the pass, if the version of Burn has a line for it or the batches lack it."""
        has_line = self._burn == "0.22" and not self._is_test
        if self._burn is None or name in self._telemetry_names:
            has_line = not isinstance(total, Mean)
        for logger in self._loggers.get(name, self._log_loggers):
            if self._burn == "0.22" and _has_batch_value(total) is not None:
                log = logger.log_bare if isinstance(logger, BareLogger) else logger.log_final
                log(self._epoch, name, value)
            elif has_line:
                logger.log_final(self._epoch, name, value)

    def running(self) -> dict[str, float]:
        """Return the value of every metric over the batches measured until now."""
        totals = self._totals()
        hosted = transfer_to_host(list(totals.values()))
        return {name: total.value for name, total in zip(totals, hosted, strict=True)}

    def latest(self) -> dict[str, float]:
        """Return the value of the last batch for every metric whose batches have one."""
        unread = {name: values[-1] for name, values in self._unread().items()}
        latest = self._latest | {
            name: value for name, value in unread.items() if name in self._loggers or value.count
        }
        latest = {name: value for name, value in latest.items() if _has_batch_value(value) is not False}
        hosted = transfer_to_host(list(latest.values()))
        return {name: measured.value for name, measured in zip(latest, hosted, strict=True)}


def _join(columns: Columns) -> list[MetricState]:
    return [*chain.from_iterable(columns.values())]


def _split(columns: Columns, values: Iterable[MetricState]) -> dict[str, list[MetricState]]:
    """Return *values*, in the order of `_join`, in columns again."""
    rest = iter(values)
    return {name: list(islice(rest, len(column))) for name, column in columns.items()}


def _has_batch_value(measured: MetricState) -> bool | None:
    """Return whether the value of a batch is logged; None if it is a value as usual.

    The others are values of an epoch, such as an area under a curve, of which Burn 0.22 logs no batches.
    """
    return getattr(measured, "has_batch_value", None)
