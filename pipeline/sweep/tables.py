"""The tables of a sweep: the live one on a terminal, and that of the results, at most 80 columns wide.

The live table has a line for each point in progress, and one for the whole sweep.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.comparison.collection import summarize
from pipeline.comparison.runs import Comparison, RunSummary, ViewOptions, average_repeats, sort_runs
from pipeline.comparison.tables import ABSENT, list_notes, text_table
from pipeline.engine.project_copy import FrozenProject
from pipeline.project.revisions.files import read_revisions
from pipeline.sweep.job import Job
from pipeline.sweep.progress import PointProgress, ProgressReader, SweepProgress
from stages.contracts.errors import StageError
from stages.contracts.text import format_duration, format_rounded, replace_unprintable
from stages.renderers.plain import read_renderer_name
from stages.runs.layout import RUNS_FOLDER

PREFECT_CONSOLE_LEVEL = "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"
"""Environment variable with the level of the logs that Prefect prints; those in its API are not affected."""
FRAMES_PER_SECOND = 1
FIXED_LINES = 4
"""Lines of the table and of the prompt that are not those of points."""
WIDTH = 80
TITLES = ("run", "", "epoch", "epochs", "time")
"""The titles of the columns; that of the second one is the metric."""


def is_drawn() -> bool:
    """Return whether a sweep draws a table: on a terminal, unless ``LEARNER_RENDERER`` is plain or none."""
    return sys.stdout.isatty() and read_renderer_name() == "live"


def hide_prefect_logs() -> None:
    """Have Prefect print no logs if a table is drawn, since it writes past the table.

    The sweep reports each error itself. Prefect reads the level when it is imported.
    """
    if is_drawn():
        os.environ.setdefault(PREFECT_CONSOLE_LEVEL, "CRITICAL")


@contextmanager
def show_live_table(progress: SweepProgress, jobs: Sequence[Job], metric: str | None) -> Iterator[None]:
    """Draw the table of *jobs* below all other output while the block runs, if standard output is a terminal.

    The values are those of *metric*, by default the one that the table of results has.
    """
    if not is_drawn():
        yield
        return
    console = Console(highlight=False)
    table = LiveTable(progress, jobs, metric)
    with Live(
        console=console,
        get_renderable=lambda: table.draw(console.width, console.height),
        refresh_per_second=FRAMES_PER_SECOND,
        transient=True,
        redirect_stderr=sys.stderr.isatty(),
    ):
        yield


class LiveTable:
    """The table of the points in progress among *jobs*."""

    def __init__(self, progress: SweepProgress, jobs: Sequence[Job], metric: str | None) -> None:
        self._progress = progress
        self._jobs = jobs
        self._reader = ProgressReader(jobs[0].base.root / RUNS_FOLDER, metric)

    def draw(self, width: int = WIDTH, height: int = 24) -> RenderableType:
        """Return the table for a terminal of that size. An error of the table never ends the sweep."""
        try:
            return self._draw(width, height)
        except Exception as error:  # noqa: BLE001  no error of the table may end the sweep
            return _printable(f"no live table: {error!r}"[: width - 1])

    def _draw(self, width: int, height: int) -> RenderableType:
        running = [job for job in self._jobs if job.copy_folder.exists()]
        progress_of_copies = self._reader.read((job.copy_folder for job in running), datetime.now(UTC))
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, width=width - 1)
        table.add_column("point", ratio=1, overflow="fold")
        for title, least in (("epoch", 7), (_printable(self._reader.metric or ""), 7), ("left", 10)):
            table.add_column(title, justify="right", no_wrap=True, min_width=least)
        shown = running[: max(1, height - FIXED_LINES)]
        for job in shown:
            table.add_row(_printable(job.name), *format_cells(progress_of_copies.get(job.copy_folder)))
        hidden = f", {len(running) - len(shown)} not shown" if len(shown) < len(running) else ""
        return Group(table, Text(self._summarize(len(running), progress_of_copies.values()) + hidden))

    def _summarize(self, running: int, points: Iterable[PointProgress]) -> str:
        progress = self._progress
        counts = {
            "done": len(progress.done),
            "failed": len(progress.failed),
            "waiting": progress.total - progress.count_finished() - running,
        }
        parts = [f"{count} {state}" for state, count in counts.items() if count or state == "done"]
        return f"{progress.total} points: {', '.join(parts)}{progress.format_time_left(points)}"


def _printable(text: str) -> Text:
    """Return *text* for rich, which would otherwise read brackets in it as markup."""
    return Text(replace_unprintable(text))


def format_cells(point: PointProgress | None) -> tuple[str, str, str]:
    """Return the epoch, the value and the time left of a point; None is one without a heartbeat here."""
    if point is None:
        return "running", "", ""
    return (
        f"{point.epoch}/{point.epochs}",
        ABSENT if point.value is None else format_rounded(point.value, 3),
        ABSENT if point.seconds_left is None else format_duration(point.seconds_left),
    )


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
    revisions = read_revisions([commits[name] for name in names])
    return summarize({name: revisions[commits[name]] for name in names})


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
    return "\n".join([*lines, *list_notes(comparison)]) + "\n"


def repeats_table(comparison: Comparison, metric: str | None) -> str:
    """Return the table of the means of the points that differ in their seeds only, the best one first."""
    metrics = () if metric is None else (metric,)
    return text_table(average_repeats(comparison), ViewOptions(metrics, sort=metric))


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
