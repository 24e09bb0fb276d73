"""The choice of metrics and the order of runs in a comparison."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.comparison.runs import Comparison, RunSummary
from stages.contracts.errors import ParamsError, closest
from stages.contracts.history import Direction

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
    return tuple(dict.fromkeys(name for each in requested for name in _matches(each, names)))


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
    found = [name for name in names if wanted in (name.casefold(), name.casefold().partition("/")[2])]
    if not found:
        options = [*names, *(name.partition("/")[2] for name in names)]
        raise ParamsError(
            f"no run has a metric {requested!r}.{closest(requested, options)} "
            f"Name one of: {', '.join(names) or 'none'}"
        )
    return found


def _key(comparison: Comparison, sort: str) -> Callable[[RunSummary], Any]:
    if sort in FACTS:
        return FACTS[sort]
    params = list(dict.fromkeys(key for run in comparison.runs for key in run.params))
    ends = [key for key in params if key == sort or key.endswith(f".{sort}")]
    if sort in params or len(ends) == 1:
        return _param(sort if sort in params else ends[0])
    if len(ends) > 1:
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
