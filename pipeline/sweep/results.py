"""The results of the points of a sweep, and the table at its end, which is at most 80 columns wide."""

from collections.abc import Sequence

from pipeline.comparison.collection import summarize
from pipeline.comparison.runs import Comparison, RunSummary, ViewOptions, sort_runs
from pipeline.engine.project_copy import FrozenProject
from pipeline.revisions.files import read_revisions
from stages.contracts.errors import StageError
from stages.contracts.text import format_duration, format_rounded, replace_unprintable

WIDTH = 80
ABSENT = "-"


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

    None keeps their order. A name that is too long has a line of its own.
    """
    rows = [("run", metric or "", "epoch", "epochs", "time")]
    rows += [_row(run, metric) for run in sort_runs(comparison, ViewOptions(sort=metric))]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[1:]]
    room = min(WIDTH - sum(widths) - 2 * len(widths), max(len(name) for name, *_ in rows))
    lines = []
    for name, *cells in rows:
        numbers = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        lines += [f"{name:<{room}}  {numbers}"] if len(name) <= room else [name, f"{'':{room}}  {numbers}"]
    notes = [replace_unprintable(f"{run.name}: {note}") for run in comparison.runs for note in run.notes]
    return "\n".join([*lines, *notes]) + "\n"


def _row(run: RunSummary, metric: str | None) -> tuple[str, str, str, str, str]:
    curve = run.metrics.get(metric or "")
    return (
        replace_unprintable(run.name),
        ABSENT if curve is None else format_rounded(curve.ranking_value, 3),
        str((curve and curve.best_epoch) or ABSENT),
        str(run.epochs or ABSENT),
        ABSENT if run.seconds is None else format_duration(run.seconds),
    )
