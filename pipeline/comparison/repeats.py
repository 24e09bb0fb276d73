"""Runs that differ in their seeds only, as one run with mean and standard deviation of each metric."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import replace

from pipeline.comparison.runs import Comparison, MetricCurve, RunSummary, param_key

SEEDS = ("build_learner.seed", "fit.seed", "load_data.seed")
REPEAT = re.compile(r",?(repeat|seed)=\d+")
"""The part of the name of an experiment that differs between repeats."""


def average_repeats(comparison: Comparison) -> Comparison:
    """Return *comparison* with one run in the place of those whose params differ in `SEEDS` only."""
    groups: dict[str, list[RunSummary]] = {}
    for run in comparison.runs:
        others = {name: value for name, value in run.params.items() if name not in SEEDS}
        groups.setdefault(param_key(others), []).append(run)
    if len(groups) == len(comparison.runs):
        return comparison
    return Comparison(tuple(_average(runs) for runs in groups.values()))


def _average(runs: Sequence[RunSummary]) -> RunSummary:
    params = {name: value for name, value in runs[0].params.items() if name not in SEEDS}
    first = replace(runs[0], params=params)
    if len(runs) == 1:
        return first
    shared = [name for name in first.metrics if all(name in run.metrics for run in runs)]
    times = [run.seconds for run in runs if run.seconds is not None]
    return replace(
        first,
        name=f"{REPEAT.sub('', first.name) or first.name} ({len(runs)} runs)",
        sha=None,
        metrics={name: _average_curves([run.metrics[name] for run in runs]) for name in shared},
        epochs=min((run.epochs for run in runs if run.epochs is not None), default=None),
        seconds=statistics.fmean(times) if times else None,
        committed=None,
        cached=all(run.cached for run in runs),
        notes=tuple(f"{run.name}: {note}" for run in runs for note in run.notes),
    )


def _average_curves(curves: Sequence[MetricCurve]) -> MetricCurve:
    """Return the mean of the epochs that all *curves* have."""
    epochs = [epoch for epoch in curves[0].series if all(epoch in curve.series for curve in curves)]
    values = {epoch: [curve.series[epoch] for curve in curves] for epoch in epochs}
    return replace(
        curves[0],
        series={epoch: statistics.fmean(values[epoch]) for epoch in epochs} or curves[0].series,
        deviations={epoch: statistics.stdev(values[epoch]) for epoch in epochs},
    )
