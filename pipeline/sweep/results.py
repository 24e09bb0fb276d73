"""The results of the points of a sweep, and the table at its end, which is at most 80 columns wide."""

from collections.abc import Sequence

from pipeline.comparison.collection import summarize
from pipeline.comparison.runs import Comparison, RunSummary, ViewOptions, sort_runs
from pipeline.engine.project_copy import FrozenProject
from pipeline.project.revisions.files import read_revisions
from stages.contracts.errors import StageError
from stages.contracts.text import format_duration, format_rounded, replace_unprintable

WIDTH = 80
ABSENT = "-"
TITLES = ("run", "", "epoch", "epochs", "time")
"""The titles of the columns; that of the second one is the metric."""


def collect_points(base: FrozenProject, names: Sequence[str]) -> Comparison:
    """Return the comparison of the experiments *names*, of the HEAD that the sweep of *base* began with.

    Raises `StageError` if one of them was removed.
    """
    commits = base.experiments()
    if missing := [name for name in names if name not in commits]:
        raise StageError(
            f"experiment {', '.join(missing)} of this sweep is missing: it was removed. "
            "Run the same command again to resume"
        )
    found = read_revisions([commits[name] for name in names])
    return summarize({name: found[commits[name]] for name in names})


def result_table(comparison: Comparison, metric: str | None) -> str:
    """Return the table of the points in *comparison*, one line each, sorted by *metric*, the best first.

    None keeps their order. A name that is too long has a line of its own, and a long *metric* is shortened.
    """
    rows = [_row(run, metric) for run in sort_runs(comparison, ViewOptions(sort=metric))]
    others = [max(map(len, column)) for column in list(zip(TITLES, *rows, strict=True))[2:]]
    free = WIDTH - sum(others) - 2 * (len(others) + 1)
    title = _shorten(replace_unprintable(metric or ""), free - len(TITLES[0]))
    widths = [max(len(title), *(len(value) for _, value, *_ in rows)), *others]
    room = max(len(TITLES[0]), min(free - widths[0], max(len(name) for name, *_ in rows)))
    lines = []
    for name, *cells in [(TITLES[0], title, *TITLES[2:]), *rows]:
        numbers = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        lines += [f"{name:<{room}}  {numbers}"] if len(name) <= room else [name, f"{'':{room}}  {numbers}"]
    notes = [replace_unprintable(f"{run.name}: {note}") for run in comparison.runs for note in run.notes]
    return "\n".join([*lines, *notes]) + "\n"


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _row(run: RunSummary, metric: str | None) -> tuple[str, str, str, str, str]:
    curve = run.metrics.get(metric or "")
    return (
        replace_unprintable(run.name),
        ABSENT if curve is None else format_rounded(curve.ranking_value, 3),
        str((curve and curve.best_epoch) or ABSENT),
        str(run.epochs or ABSENT),
        ABSENT if run.seconds is None else format_duration(run.seconds),
    )
