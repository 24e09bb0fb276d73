"""The live table of a sweep on a terminal: a line for each point in progress, and one for the whole sweep."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.sweep.job import Job
from pipeline.sweep.point_progress import PointProgress, ProgressReader
from pipeline.sweep.progress import SweepProgress
from pipeline.sweep.results import ABSENT, WIDTH
from stages.contracts.text import format_duration, format_rounded, replace_unprintable
from stages.renderers.plain import read_renderer_name
from stages.runs.layout import RUNS_FOLDER

PREFECT_CONSOLE_LEVEL = "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"
"""Environment variable with the level of the logs that Prefect prints; those in its API are not affected."""
FRAMES_PER_SECOND = 1
FIXED_LINES = 4
"""Lines of the table and of the prompt that are not those of points."""


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
        found = self._reader.read((job.copy_folder for job in running), datetime.now(UTC))
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, width=width - 1)
        table.add_column("point", ratio=1, overflow="fold")
        for title, least in (("epoch", 7), (_printable(self._reader.metric or ""), 7), ("left", 10)):
            table.add_column(title, justify="right", no_wrap=True, min_width=least)
        shown = running[: max(1, height - FIXED_LINES)]
        for job in shown:
            table.add_row(_printable(job.name), *format_cells(found.get(job.copy_folder)))
        hidden = f", {len(running) - len(shown)} not shown" if len(shown) < len(running) else ""
        return Group(table, Text(self._summarize(len(running), found.values()) + hidden))

    def _summarize(self, running: int, found: Iterable[PointProgress]) -> str:
        progress = self._progress
        counts = {
            "done": len(progress.done),
            "failed": len(progress.failed),
            "waiting": progress.total - progress.count_finished() - running,
        }
        parts = [f"{count} {state}" for state, count in counts.items() if count or state == "done"]
        return f"{progress.total} points: {', '.join(parts)}{progress.format_time_left(found)}"


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
