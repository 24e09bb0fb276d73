"""What is known of each run that is compared: plain values, which the tables and pages are made of."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from stages.contracts.history import Direction

WORKSPACE = "workspace"


@dataclass(frozen=True)
class Measured:
    """A metric on one split of one run, epoch by epoch."""

    split: str
    metric: str
    series: Mapping[int, float]
    """Epoch to value, ascending; at least one."""
    better: Direction | None
    """Which way is better; None where nobody said so, and then nothing is the best."""

    @property
    def name(self) -> str:
        """As ``valid/Loss``."""
        return f"{self.split}/{self.metric}"

    @property
    def first(self) -> float:
        """Of the first epoch."""
        return self.series[min(self.series)]

    @property
    def last(self) -> float:
        """Of the last epoch."""
        return self.series[max(self.series)]

    @cached_property
    def best_epoch(self) -> int | None:
        """That with the best finite value, the earlier of two equals; None where there is none."""
        finite = [epoch for epoch, value in self.series.items() if math.isfinite(value)]
        if not finite or self.better is None:
            return None
        sign = 1.0 if self.better is Direction.LOWEST else -1.0
        return min(finite, key=lambda epoch: (sign * self.series[epoch], epoch))

    @property
    def best(self) -> float | None:
        """The value of that epoch."""
        return None if self.best_epoch is None else self.series[self.best_epoch]

    @property
    def ranked(self) -> float:
        """What runs are compared by: the best value, or the last where nothing is the best."""
        return self.last if self.best is None else self.best


@dataclass(frozen=True)
class Run:
    """One run, as a commit, an experiment or the workspace has it."""

    name: str
    """The experiment's, or as it was asked for; ``workspace``."""
    sha: str | None
    """None for the workspace."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key to value, as the stages were told when they ran; of params.yaml where none ran."""
    metrics: Mapping[str, Measured] = field(default_factory=dict)
    """By ``split/metric``; empty where they cannot be had."""
    epochs: int | None = None
    """The last one with a value."""
    seconds: float | None = None
    """What the training took, where its run store is still there and says so."""
    committed: datetime | None = None
    """When it was committed; None for the workspace."""
    cached: bool = False
    """Whether DVC's cache has every output that its dvc.lock names; the files that were read are intact."""
    notes: tuple[str, ...] = ()
    """What a reader must know, as that params.yaml was edited since."""


@dataclass(frozen=True)
class Comparison:
    """Runs beside each other; the first is what the others are measured by."""

    runs: tuple[Run, ...]

    @cached_property
    def differing(self) -> tuple[str, ...]:
        """The params that are not the same in all runs, in the order of the first that has them."""
        keys = list(dict.fromkeys(key for run in self.runs for key in run.params))
        return tuple(key for key in keys if len({repr(run.params.get(key)) for run in self.runs}) > 1)

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Every ``split/metric`` that any run has: those of the valid split first."""
        names = {name for run in self.runs for name in run.metrics}
        return tuple(sorted(names, key=lambda name: (not name.startswith("valid/"), name)))

    def delta(self, run: Run, metric: str) -> float | None:
        """How much *run*'s `Measured.ranked` is above the first run's; None where either has none."""
        here, first = run.metrics.get(metric), self.runs[0].metrics.get(metric)
        return None if here is None or first is None else here.ranked - first.ranked
