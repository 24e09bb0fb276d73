"""Early stopping of the points of a sweep: after each rung of epochs, only the better points continue.

A rung trains its points to the same epoch. A point that stops keeps its experiment of that epoch. A point
that continues resumes in its run store, and its experiment of more epochs replaces the previous one. The
choice is made when a rung has finished, from the values that the experiments have. So it depends neither on
the order in which points finish nor on a kill, and a sweep that resumes makes the same choices. The rungs and
the fraction are those of successive halving (Jamieson and Talwalkar, 2016), which ASHA (Li et al., 2020) runs
without waiting for a rung.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pipeline.comparison.runs import Comparison, MetricCurve, select_metrics
from pipeline.engine.project_copy import FrozenProject
from pipeline.sweep.plan import EPOCHS, Point, count_epochs, params_of
from stages.contracts.errors import ParamsError
from stages.contracts.history import Direction

VARYING_EPOCHS = f"--stop chooses the epochs of each point, so -S {EPOCHS} must have one value"


@dataclass(frozen=True)
class StopRule:
    """A rule of `RULES`."""

    factor: int
    """The quotient of the epochs of two rungs, and the part of the points that continues: one in *factor*."""
    pruner: str = ""
    """The class of Optuna's pruner that chooses the points instead; empty for the best in *factor*."""

    def rungs(self, epochs: int) -> list[int]:
        """Return the epochs after which points stop, ascending; the last one is *epochs*."""
        found = [epochs]
        while found[-1] >= self.factor:
            found.append(found[-1] // self.factor)
        return found[::-1]

    def select(self, ranks: Mapping[int, float | None]) -> list[int]:
        """Return the points that continue, by their *ranks*: lower is better, None is worse than any number.

        One in `factor` points continues, rounded down, but at least one. Of equal points, the first ones do.
        """
        ranked = sorted((rank, number) for number, rank in ranks.items() if rank is not None)
        chosen = ranked[: max(1, len(ranks) // self.factor)]
        return sorted(number for _, number in chosen)


RULES = {
    "asha": StopRule(3),
    "median": StopRule(2),
    "hyperband": StopRule(3, "HyperbandPruner"),
    "percentile": StopRule(2, "PercentilePruner"),
}
"""The values of ``--stop``: a third of the points continues, the better half, or those of Optuna's pruner."""
Curves = Mapping[int, MetricCurve | None]
"""The numbers of points and their curves of the metric that ranks them; None for a point that failed."""
Select = Callable[[Curves, int], Collection[int]]
"""A function that returns the points that continue, from the curves of a rung and its epochs."""


@dataclass(frozen=True)
class Rungs:
    """The epochs after which points stop, and the choice of those that continue."""

    epochs: Sequence[int]
    """Ascending; the last one is that of points that are not stopped."""
    select: Select


def check_epochs(base: FrozenProject, points: Sequence[Point]) -> int:
    """Return the number of epochs of *points*. Raises `ParamsError` if it is not that of every point."""
    if len(points) > 1 and any(key == EPOCHS for point in points for key, _ in point.varying):
        raise ParamsError(VARYING_EPOCHS)
    mistakes = []
    for point in points:
        try:
            return count_epochs(base, params_of(base, point))
        except ParamsError as mistake:
            mistakes.append(mistake)
    raise mistakes[0]


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


def rank(curve: MetricCurve | None, epochs: float) -> float | None:
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


def select_points(rule: StopRule, curves: Curves, epochs: int) -> list[int]:
    """Return the points that continue by *rule* after the rung of *epochs*."""
    return rule.select({number: rank(curve, epochs) for number, curve in curves.items()})
