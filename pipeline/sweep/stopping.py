"""Early stopping of the points of a sweep: after each rung of epochs, only the better points continue.

A rung trains its points to the same epoch. A point that stops keeps its experiment of that epoch. A point
that continues resumes in its run store, and its experiment of more epochs replaces the previous one. The
choice is made when a rung has finished, from the values that the experiments have. So it depends neither on
the order in which points finish nor on a kill, and a sweep that resumes makes the same choices. The rungs and
the fraction are those of successive halving (Jamieson and Talwalkar, 2016), which ASHA (Li et al., 2020) runs
without waiting for a rung.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.comparison.runs import Comparison, MetricCurve, select_metrics
from pipeline.engine.project_copy import FrozenProject
from pipeline.sweep.plan import EPOCHS, Point, count_epochs, params_of
from stages.contracts.errors import ParamsError
from stages.contracts.history import Direction


@dataclass(frozen=True)
class StopRule:
    """A rule of `RULES`."""

    factor: int
    """The quotient of the epochs of two rungs, and the part of the points that continues: one in *factor*."""

    def rungs(self, epochs: int) -> list[int]:
        """Return the epochs after which points stop, ascending; the last one is *epochs*."""
        found = [epochs]
        while found[-1] >= self.factor:
            found.append(found[-1] // self.factor)
        return found[::-1]

    def select(self, ranks: Mapping[str, float | None]) -> list[str]:
        """Return the points that continue, by their *ranks*: lower is better, None is worse than any number.

        One in `factor` points continues, rounded down, but at least one. Of equal points, the first ones do.
        """
        ranked = sorted(
            (rank, place, name) for place, (name, rank) in enumerate(ranks.items()) if rank is not None
        )
        count = max(1, len(ranks) // self.factor)
        chosen = {name for _, _, name in ranked[:count]}
        return [name for name in ranks if name in chosen]


RULES = {"asha": StopRule(3), "median": StopRule(2)}
"""The values of ``--stop``: a third of the points continues, or the better half."""


def check_epochs(base: FrozenProject, points: Sequence[Point]) -> int:
    """Return the number of epochs of *points*. Raises `ParamsError` if it is not that of every point."""
    if any(key == EPOCHS for point in points for key, _ in point.varying if len(points) > 1):
        raise ParamsError(f"--stop chooses the epochs of each point, so -S {EPOCHS} must have one value")
    return count_epochs(base, params_of(base, points[0]))


def default_metric(comparison: Comparison) -> str | None:
    """Return the first metric with a known direction, of the valid split if possible; None without one."""
    curves = {name: curve for run in comparison.runs for name, curve in run.metrics.items()}
    return next((name for name in comparison.metrics if curves[name].better), None)


def find_metric(comparison: Comparison, requested: str | None) -> str:
    """Return the metric to rank by: *requested*, or the default.

    Raises `ParamsError` if the runs have no such metric, or if its direction is unknown.
    """
    if not requested:
        found = default_metric(comparison)
    else:
        names = select_metrics(comparison, [requested])
        curves = [run.metrics[names[0]] for run in comparison.runs if names[0] in run.metrics]
        found = names[0] if curves[0].better else None
    if found is None:
        raise ParamsError(
            f"the points cannot be ranked: no direction is known of {requested or 'any metric'}. "
            f"Name another one by --metric: {', '.join(comparison.metrics) or 'none'}"
        )
    return found


def rank(curve: MetricCurve | None, epochs: int) -> float | None:
    """Return the best value of *curve* in its first *epochs*, as a number of which lower is better.

    None if no value is finite.
    """
    values = (
        [value for epoch, value in curve.series.items() if epoch <= epochs and math.isfinite(value)]
        if curve
        else []
    )
    if not curve or not values:
        return None
    return -max(values) if curve.better is Direction.HIGHEST else min(values)


def select_points(
    comparison: Comparison, names: Sequence[str], metric: str, epochs: int, rule: StopRule
) -> list[str]:
    """Return the points of *names* that continue after the rung of *epochs*; one without a run has failed."""
    curves = {run.name: run.metrics.get(metric) for run in comparison.runs}
    return rule.select({name: rank(curves.get(name), epochs) for name in names})
