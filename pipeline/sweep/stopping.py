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
from typing import Any

from pipeline.comparison.runs import Comparison, MetricCurve, select_metrics
from pipeline.engine.project_copy import FrozenProject
from pipeline.sweep.plan import EPOCHS, Point, count_epochs, fit_params, params_of
from stages.contracts.errors import ParamsError
from stages.contracts.history import Direction

VALIDATE_EVERY = "fit.validate_every"


@dataclass(frozen=True)
class StopRule:
    """A rule of `RULES`."""

    factor: int
    """The quotient of the epochs of two rungs, and the part of the points that continues: one in *factor*."""
    pruner: str = ""
    """The class of Optuna's pruner that chooses the points instead; empty for the best in *factor*."""

    def rungs(self, epochs: int, validate_every: int) -> list[int]:
        """Return the epochs after which points stop, ascending; the last one is *epochs*.

        The others are rounded up to a multiple of *validate_every*, so that they have values to rank by.
        """
        epochs_of_rungs = [epochs]
        while epochs_of_rungs[-1] >= self.factor:
            epochs_of_rungs.append(epochs_of_rungs[-1] // self.factor)
        rounded = {math.ceil(rung / validate_every) * validate_every for rung in epochs_of_rungs}
        return [*sorted(rung for rung in rounded if rung < epochs), epochs]

    def select(self, curves: "Curves", epochs: int) -> list[int]:
        """Return the points that continue after the rung of *epochs*, by the `rank` of their *curves*.

        One in `factor` points continues, rounded down, but at least one. Of equal points, the first ones do.
        """
        ranks = [(rank(curve, epochs), number) for number, curve in curves.items()]
        ranked = sorted((value, number) for value, number in ranks if value is not None)
        return sorted(number for _, number in ranked[: max(1, len(ranks) // self.factor)])


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


def plan_rungs(rule: StopRule, base: FrozenProject, points: Sequence[Point]) -> list[int]:
    """Return the epochs after which *rule* stops *points*, ascending.

    Raises `ParamsError` if the epochs or the validated ones differ between points, or if none is validated.
    """
    if len(points) > 1:
        check_varying({key for point in points for key, _ in point.varying})
    params = _first_params(base, points)
    epochs, every = count_epochs(base, params), fit_params(base, params).get("validate_every", 1)
    validate_every = every if isinstance(every, int) and every > 0 else 1  # each point reports another value
    if validate_every > epochs:
        raise ParamsError(
            f"--stop ranks points by their validation, but {VALIDATE_EVERY} is {validate_every} and {EPOCHS} "
            f"is {epochs}, so no epoch is validated. Set {VALIDATE_EVERY} to at most {epochs}"
        )
    return rule.rungs(epochs, validate_every)


def check_varying(keys: Collection[str]) -> None:
    """Raise `ParamsError` if one of *keys*, the params that vary, must be the same for all points."""
    for key in (EPOCHS, VALIDATE_EVERY):
        if key in keys:
            raise ParamsError(f"--stop chooses the epochs of each point, so -S {key} must have one value")


def _first_params(base: FrozenProject, points: Sequence[Point]) -> Mapping[str, Any]:
    """Return the params of the first point that can run. Raises `ParamsError` if none can."""
    mistakes = []
    for point in points:
        try:
            return params_of(base, point)
        except ParamsError as mistake:
            mistakes.append(mistake)
    raise mistakes[0]


def default_metric(comparison: Comparison) -> str | None:
    """Return the first metric with a known direction; None without one.

    It is one of the valid split if the runs have that split.
    """
    curves = {name: curve for run in comparison.runs for name, curve in run.metrics.items()}
    return next((name for name in select_metrics(comparison, ()) if curves[name].better), None)


def find_metric(comparison: Comparison, requested: str | None) -> str:
    """Return the metric to rank by: *requested*, or the default.

    Raises `ParamsError` if the runs have no such metric, or if its direction is unknown.
    """
    if not requested:
        metric = default_metric(comparison)
    else:
        names = select_metrics(comparison, [requested])
        curves = [run.metrics[names[0]] for run in comparison.runs if names[0] in run.metrics]
        metric = names[0] if curves[0].better else None
    if metric is None:
        raise ParamsError(
            f"the points cannot be ranked: no direction is known of {requested or 'any metric'}. "
            f"Name another one by --metric: {', '.join(comparison.metrics) or 'none'}"
        )
    return metric


def rank(curve: MetricCurve | None, epochs: float) -> float | None:
    """Return the best value of *curve* in its first *epochs*, as a number of which lower is better.

    None if no value is finite.
    """
    if curve is None:
        return None
    values = [value for epoch, value in curve.series.items() if epoch <= epochs and math.isfinite(value)]
    if not values:
        return None
    return -max(values) if curve.better is Direction.HIGHEST else min(values)
