"""The values of compared runs, the choice of their metrics, and their order."""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from stages.contracts.errors import ParamsError, closest
from stages.contracts.history import Direction

SEEDS = ("build_learner.seed", "fit.seed", "load_data.seed", "load_data.fold")
"""The params that differ between repeats, also the fold of a cross-validation."""
REPEAT = re.compile(r",?(repeat|seed|fold)=\d+")
"""The part of the name of an experiment that differs between repeats."""


@dataclass(frozen=True)
class MetricCurve:
    """A metric on one split of one run, epoch by epoch."""

    split: str
    metric: str
    series: Mapping[int, float]
    """Epoch to value, ascending; at least one."""
    better: Direction | None
    """Which values are better; None if unknown, and then no value is the best."""
    open_epoch: int | None = None
    """The epoch in progress, whose value is a mean until now; None if every epoch is finished."""
    deviations: Mapping[int, float] = field(default_factory=dict)
    """The sample standard deviation of each epoch's value, if it is the mean of several runs."""

    @property
    def name(self) -> str:
        """The name, as in ``valid/Loss``."""
        return f"{self.split}/{self.metric}"

    @property
    def first(self) -> float:
        """The value of the first epoch."""
        return self.series[min(self.series)]

    @property
    def last(self) -> float:
        """The value of the last epoch, or of the last finished one if there is one."""
        return self._finished[max(self._finished)]

    @property
    def _finished(self) -> Mapping[int, float]:
        """The values that can be compared with those of other runs."""
        finished = {epoch: value for epoch, value in self.series.items() if epoch != self.open_epoch}
        return finished or self.series

    @cached_property
    def best_epoch(self) -> int | None:
        """The finished epoch with the best finite value, the earlier of two equal ones, or None."""
        finite = [epoch for epoch, value in self._finished.items() if math.isfinite(value)]
        if not finite or self.better is None:
            return None
        sign = 1.0 if self.better is Direction.LOWEST else -1.0
        return min(finite, key=lambda epoch: (sign * self.series[epoch], epoch))

    @property
    def best(self) -> float | None:
        """The value of the best epoch, or None."""
        return None if self.best_epoch is None else self.series[self.best_epoch]

    @property
    def ranking_value(self) -> float:
        """The value by which runs are ranked: the best one, or the last one."""
        return self.last if self.best is None else self.best

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the ranking value; None for one run."""
        epoch = max(self._finished) if self.best_epoch is None else self.best_epoch
        return self.deviations.get(epoch)


@dataclass(frozen=True)
class RunSummary:
    """One run, read from a commit, an experiment or the workspace."""

    name: str
    """The name of the experiment, or the revision as the user typed it; ``workspace``."""
    sha: str | None
    """None for the workspace."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key to value, from dvc.lock; from params.yaml before the first run."""
    metrics: Mapping[str, MetricCurve] = field(default_factory=dict)
    """Curves by ``split/metric``; empty if they are not cached."""
    epochs: int | None = None
    """The last epoch with a value."""
    seconds: float | None = None
    """The duration of the training; None if no record of it exists on this machine."""
    committed: datetime | None = None
    """The time of the commit; None for the workspace."""
    cached: bool = False
    """Whether the cache has every output that its dvc.lock names, and the files that were read are intact."""
    notes: tuple[str, ...] = ()
    """Warnings for the reader, for example that params.yaml was edited after the run."""
    inputs: str = ""
    """The code and the data that the stages ran with, as a text that is equal for equal ones."""


@dataclass(frozen=True)
class Comparison:
    """Several runs; differences are relative to `baseline`."""

    runs: tuple[RunSummary, ...]

    @cached_property
    def baseline(self) -> RunSummary:
        """The first run that has metrics, or the first one if none has; there must be at least one run."""
        return next((run for run in self.runs if run.metrics), self.runs[0])

    @cached_property
    def params(self) -> tuple[str, ...]:
        """Every param of any run, in the order of the first run that has it."""
        return tuple(dict.fromkeys(key for run in self.runs for key in run.params))

    @cached_property
    def differing(self) -> tuple[str, ...]:
        """The params that are not equal in all runs."""
        return tuple(
            key for key in self.params if len({param_key(run.params.get(key)) for run in self.runs}) > 1
        )

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Every ``split/metric`` of any run: first those of the valid split."""
        names = {name for run in self.runs for name in run.metrics}
        return tuple(sorted(names, key=lambda name: (not name.startswith("valid/"), name)))

    def delta(self, run: RunSummary, metric: str) -> float | None:
        """Return the ranking value of *run* minus that of the baseline; None if one of them has none."""
        curve, there = run.metrics.get(metric), self.baseline.metrics.get(metric)
        return None if curve is None or there is None else curve.ranking_value - there.ranking_value

    def exceeds_noise(self, run: RunSummary, metric: str) -> bool | None:
        """Return whether the delta of *run* is larger than the standard deviation of such a difference.

        Its variance is the sum of both variances. None if one of both is not the mean of several runs.
        """
        delta = self.delta(run, metric)
        if run is self.baseline or delta is None:
            return None
        first, second = (each.metrics[metric].deviation for each in (run, self.baseline))
        return None if first is None or second is None else abs(delta) > math.hypot(first, second)


def param_key(value: Any) -> str:
    """Return a text that is the same for equal params: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, float) and value.is_integer():
        return repr(int(value))
    if isinstance(value, Mapping):
        return repr(sorted((repr(key), param_key(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return repr([param_key(item) for item in value])
    return repr(value)


FACTS: dict[str, Callable[[RunSummary], Any]] = {
    "name": lambda run: run.name,
    "epochs": lambda run: run.epochs,
    "time": lambda run: run.seconds,
    "committed": lambda run: run.committed,
}
"""The sort keys that are neither a param nor a metric."""


@dataclass(frozen=True)
class ViewOptions:
    """The metrics to show, and the order of the runs."""

    metrics: tuple[str, ...] = ()
    """``Loss`` for all splits, ``valid/Loss`` for one; empty for all metrics of the valid split."""
    sort: str | None = None
    """A metric (the best run first), a param, or one of `FACTS`; None keeps the order of the runs."""
    reverse: bool = False


def select_metrics(comparison: Comparison, requested: Sequence[str]) -> tuple[str, ...]:
    """Return the ``split/metric`` names that *requested* names. Raises `ParamsError` for an unknown one."""
    names = comparison.metrics
    if not requested:
        return tuple(name for name in names if name.startswith("valid/")) or names
    return tuple(dict.fromkeys(name for request in requested for name in _matches(request, names)))


def sort_runs(comparison: Comparison, view: ViewOptions) -> tuple[RunSummary, ...]:
    """Return the runs in the order of *view*; those without a value come last.

    Raises `ParamsError` for an unknown sort key.
    """
    if view.sort is None:
        return comparison.runs[::-1] if view.reverse else comparison.runs
    key = _key(comparison, view.sort)
    valued = [run for run in comparison.runs if key(run) is not None]
    without = [run for run in comparison.runs if key(run) is None]
    return (*sorted(valued, key=key, reverse=view.reverse), *without)


def _matches(requested: str, names: Sequence[str]) -> list[str]:
    wanted = requested.casefold().replace("_", " ")
    matches = [name for name in names if wanted in (name.casefold(), name.casefold().partition("/")[2])]
    if not matches:
        if not names:
            raise ParamsError("no run has metrics. Run `dvc repro`, or name a revision that has results")
        options = [*names, *(name.partition("/")[2] for name in names)]
        raise ParamsError(
            f"no run has a metric {requested!r}.{closest(requested, options)} Name one of: {', '.join(names)}"
        )
    return matches


def _key(comparison: Comparison, sort: str) -> Callable[[RunSummary], Any]:
    if sort in FACTS:
        return FACTS[sort]
    params = comparison.params
    ends = [sort] if sort in params else [key for key in params if key.endswith(f".{sort}")]
    if len(ends) == 1:
        return _param(ends[0])
    if ends:
        raise ParamsError(f"the sort key {sort!r} is ambiguous. Name one of: {', '.join(ends)}")
    options = [*FACTS, *comparison.metrics, *params]
    try:
        name, *_ = _matches(sort, comparison.metrics)  # the metrics of the valid split come first
    except ParamsError:
        raise ParamsError(
            f"runs cannot be sorted by {sort!r}.{closest(sort, options)} "
            f"Name a param, or one of: {', '.join([*FACTS, *comparison.metrics])}"
        ) from None
    return _metric(name)


def _param(name: str) -> Callable[[RunSummary], Any]:
    def key(run: RunSummary) -> Any:
        value = run.params.get(name)
        if value is None:
            return None
        numeric = isinstance(value, int | float)
        return (not numeric, value if numeric else 0, "" if numeric else str(value))

    return key


def _metric(name: str) -> Callable[[RunSummary], Any]:
    def key(run: RunSummary) -> Any:
        curve = run.metrics.get(name)
        if curve is None or curve.ranking_value != curve.ranking_value:
            return None
        return -curve.ranking_value if curve.better is Direction.HIGHEST else curve.ranking_value

    return key


def average_repeats(comparison: Comparison) -> Comparison:
    """Return *comparison* with one run in the place of those that differ in `SEEDS` only.

    A run without metrics stays as it is. One that is listed twice, such as an experiment that is also in the
    workspace, counts once.
    """
    groups: dict[tuple[str, ...], list[RunSummary]] = {}
    for run in comparison.runs:
        others = {name: value for name, value in run.params.items() if name not in SEEDS}
        key = (param_key(others), run.inputs) if run.metrics else (run.name,)
        groups.setdefault(key, []).append(run)
    if len(groups) == len(comparison.runs):
        return comparison
    return Comparison(tuple(_average(runs) for runs in groups.values()))


def _average(runs: Sequence[RunSummary]) -> RunSummary:
    notes = tuple(f"{run.name}: {note}" for run in runs for note in run.notes) if runs[1:] else runs[0].notes
    runs = list({(param_key(run.params), repr(run.metrics)): run for run in runs}.values())
    params = {name: value for name, value in runs[0].params.items() if name not in SEEDS}
    first = replace(runs[0], params=params, notes=notes)
    if len(runs) == 1:
        return first
    shared = [name for name in first.metrics if all(name in run.metrics for run in runs)]
    curves = [_average_curves([run.metrics[name] for run in runs]) for name in shared]
    times = [run.seconds for run in runs if run.seconds is not None]
    return replace(
        first,
        name=f"{REPEAT.sub('', first.name) or first.name} ({len(runs)} runs)",
        sha=None,
        metrics={curve.name: curve for curve in curves if curve.series},
        epochs=min((run.epochs for run in runs if run.epochs is not None), default=None),
        seconds=statistics.fmean(times) if times else None,
        committed=None,
        cached=all(run.cached for run in runs),
    )


def _average_curves(curves: Sequence[MetricCurve]) -> MetricCurve:
    """Return the mean of the epochs that all *curves* have."""
    epochs = [epoch for epoch in curves[0].series if all(epoch in curve.series for curve in curves)]
    moments = {epoch: _mean_and_deviation([curve.series[epoch] for curve in curves]) for epoch in epochs}
    return replace(
        curves[0],
        series={epoch: mean for epoch, (mean, _) in moments.items()},
        deviations={epoch: deviation for epoch, (_, deviation) in moments.items()},
    )


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation; `statistics` refuses values that are not finite."""
    if all(map(math.isfinite, values)):
        return statistics.mean(values), statistics.stdev(values)  # fmean overflows in the sum
    return sum(values) / len(values), math.nan
