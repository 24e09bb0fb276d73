"""Which metrics are shown, and in which order the runs stand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.comparison.runs import Comparison, Run
from stages.contracts.errors import ParamsError, closest
from stages.contracts.history import Direction

FACTS: dict[str, Callable[[Run], Any]] = {
    "name": lambda run: run.name,
    "epochs": lambda run: run.epochs,
    "time": lambda run: run.seconds,
    "committed": lambda run: run.committed,
}
"""What a run can be sorted by, beside params and metrics."""


@dataclass(frozen=True)
class View:
    """What is to be seen of a comparison."""

    metrics: tuple[str, ...] = ()
    """``Loss`` for all splits, ``valid/Loss`` for one; none for those of the valid split."""
    sort: str | None = None
    """A metric (the best run first), a param, or one of `FACTS`; None leaves the order as it was given."""
    reverse: bool = False


def shown_metrics(comparison: Comparison, asked: Sequence[str]) -> tuple[str, ...]:
    """The ``split/metric`` names that *asked* means. Raises `ParamsError` for one that no run has."""
    there = comparison.metrics
    if not asked:
        return tuple(name for name in there if name.startswith("valid/")) or there
    return tuple(dict.fromkeys(name for each in asked for name in _matches(each, there)))


def _matches(asked: str, there: Sequence[str]) -> list[str]:
    wanted = asked.casefold().replace("_", " ")
    found = [name for name in there if wanted in (name.casefold(), name.casefold().partition("/")[2])]
    if not found:
        known = [*there, *(name.partition("/")[2] for name in there)]
        raise ParamsError(
            f"no run has a metric {asked!r}.{closest(asked, known)} There: {', '.join(there) or 'none'}"
        )
    return found


def arranged(comparison: Comparison, view: View) -> tuple[Run, ...]:
    """The runs in the order asked for; those without a value come last.

    Raises `ParamsError` for a key that is none.
    """
    if view.sort is None:
        return comparison.runs[::-1] if view.reverse else comparison.runs
    key = _key(comparison, view.sort)
    valued = [run for run in comparison.runs if key(run) is not None]
    without = [run for run in comparison.runs if key(run) is None]
    return (*sorted(valued, key=key, reverse=view.reverse), *without)


def _key(comparison: Comparison, sort: str) -> Callable[[Run], Any]:
    if sort in FACTS:
        return FACTS[sort]
    params = list(dict.fromkeys(key for run in comparison.runs for key in run.params))
    ends = [key for key in params if key == sort or key.endswith(f".{sort}")]
    if sort in params or len(ends) == 1:
        return _param(sort if sort in params else ends[0])
    if len(ends) > 1:
        raise ParamsError(f"{sort!r} may be {' or '.join(ends)}: say which")
    known = [*FACTS, *comparison.metrics, *params]
    try:
        name, *_ = _matches(sort, comparison.metrics)  # the valid split's come first
    except ParamsError:
        raise ParamsError(
            f"runs cannot be sorted by {sort!r}.{closest(sort, known)} "
            f"By: {', '.join([*FACTS, *comparison.metrics])}, or a param"
        ) from None
    return _metric(name)


def _param(name: str) -> Callable[[Run], Any]:
    def key(run: Run) -> Any:
        value = run.params.get(name)
        if value is None:
            return None
        numeric = isinstance(value, int | float)
        return (not numeric, value if numeric else 0, "" if numeric else str(value))

    return key


def _metric(name: str) -> Callable[[Run], Any]:
    def key(run: Run) -> Any:
        found = run.metrics.get(name)
        if found is None or found.ranked != found.ranked:
            return None
        return -found.ranked if found.better is Direction.HIGHEST else found.ranked

    return key
