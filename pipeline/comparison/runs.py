"""The values of compared runs, from which tables, pages and plots are made."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from stages.contracts.history import Direction


@dataclass(frozen=True)
class MetricCurve:
    """A metric on one split of one run, epoch by epoch."""

    split: str
    metric: str
    series: Mapping[int, float]
    """Epoch to value, ascending; at least one."""
    better: Direction | None
    """Which values are better; None if unknown, and then no value is the best."""

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
        """The value of the last epoch."""
        return self.series[max(self.series)]

    @cached_property
    def best_epoch(self) -> int | None:
        """The epoch with the best finite value, the earlier of two equal ones; None if there is none."""
        finite = [epoch for epoch, value in self.series.items() if math.isfinite(value)]
        if not finite or self.better is None:
            return None
        sign = 1.0 if self.better is Direction.LOWEST else -1.0
        return min(finite, key=lambda epoch: (sign * self.series[epoch], epoch))

    @property
    def best(self) -> float | None:
        """The value of the best epoch; None if there is none."""
        return None if self.best_epoch is None else self.series[self.best_epoch]

    @property
    def ranking_value(self) -> float:
        """The value by which runs are ranked: the best one, or the last one if there is no best."""
        return self.last if self.best is None else self.best


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


@dataclass(frozen=True)
class Comparison:
    """Several runs; differences are relative to the first."""

    runs: tuple[RunSummary, ...]

    @cached_property
    def differing(self) -> tuple[str, ...]:
        """The params that are not equal in all runs, in the order of the first run that has them."""
        keys = list(dict.fromkeys(key for run in self.runs for key in run.params))
        return tuple(key for key in keys if len({repr(run.params.get(key)) for run in self.runs}) > 1)

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Every ``split/metric`` of any run: first those of the valid split."""
        names = {name for run in self.runs for name in run.metrics}
        return tuple(sorted(names, key=lambda name: (not name.startswith("valid/"), name)))

    def delta(self, run: RunSummary, metric: str) -> float | None:
        """Return the ranking value of *run* minus that of the first run; None if one of them has none."""
        here, first = run.metrics.get(metric), self.runs[0].metrics.get(metric)
        return None if here is None or first is None else here.ranking_value - first.ranking_value
