"""The progress of a sweep and its tables: the points in progress, their outcomes, and the time that is left.

The progress of points in training is read from their run stores on this host; they write no file for it. The
lock of a run store has the process that trains in it, and that process works in the copy of its point. A
process of another host has no working directory here, so that its point has no progress.

The live table on a terminal has a line for each point in progress, and one for the whole sweep; that of the
results is at most 80 columns wide.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.comparison.collection import direction_of, summarize
from pipeline.comparison.runs import (
    Comparison,
    MetricCurve,
    RunSummary,
    ViewOptions,
    average_repeats,
    sort_runs,
)
from pipeline.comparison.tables import ABSENT, align, list_notes, text_table
from pipeline.engine.project_copy import FrozenProject
from pipeline.project.revisions.files import read_revisions
from pipeline.sweep.job import Job
from pipeline.sweep.stopping import find_metric
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.events import Progress
from stages.contracts.history import Split
from stages.contracts.printing import print_line
from stages.contracts.text import format_duration, format_rounded, replace_unprintable
from stages.loggers.log_files import read_epoch
from stages.renderers.plain import read_renderer_name
from stages.renderers.scene import compute_run_share
from stages.runs.layout import RUNS_FOLDER, list_named_locks, lock_of
from stages.runs.overview import Beat, read_beat
from stages.system.file_lock import lock_holder
from stages.system.processes import ProcessIdentity, working_directory

PREFECT_CONSOLE_LEVEL = "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"
"""Environment variable with the level of the logs that Prefect prints; those in its API are not affected."""
FRAMES_PER_SECOND = 1
FIXED_LINES = 4
"""Lines of the table and of the prompt that are not those of points."""
WIDTH = 80
MAX_TITLE = 40
"""The most characters of a metric in the title of its column."""


@dataclass
class PointProgress:
    """The progress of a point that trains."""

    store: Path
    first: Beat
    """The first heartbeat of its process that was read."""
    last: Beat
    read_epochs: int = 0
    """The last epoch whose logs were read."""
    value: float | None = None
    """The metric in the last finished epoch that has a value."""

    @property
    def share(self) -> float:
        """The finished share of the epochs, from 0 to 1."""
        return compute_share(self.last)

    @property
    def gained(self) -> float:
        """The part of `share` that this sweep has trained: less than `share` after a resume."""
        return self.share - compute_share(self.first)

    def estimate_seconds_left(self, now: datetime) -> float | None:
        """Return the time after *now* that the rest of the epochs takes, at the speed until now.

        None if the share has not grown, or if all epochs have been trained.
        """
        gained, share = self.gained, self.share
        if gained <= 0 or share >= 1:
            return None
        remaining = (self.last.time - self.first.time).total_seconds() * (1 - share) / gained
        return max(0.0, remaining - (now - self.last.time).total_seconds())


@dataclass
class ProgressReader:
    """A reader of the progress of points, which reads the logs of an epoch once."""

    runs_root: Path
    """The folder of the run stores."""
    requested: str | None
    """The metric in ``--metric``; None is the default."""
    metric: str | None = None
    """The ``split/metric`` whose values are read; None until an epoch of a point has values."""
    _points: dict[Path, PointProgress] = field(default_factory=dict)

    def read(self, copies: Iterable[Path]) -> dict[Path, PointProgress]:
        """Return the progress of the points that work in *copies*, by their copy.

        A point that has trained keeps its last progress.
        """
        wanted, stores = set(copies), dict[Path, Path]()
        with suppress(OSError):  # a store was removed
            stores = self._find_stores(wanted)
        for copy, store in stores.items():
            with suppress(StageError, OSError, ValueError):  # the point has ended, or a file is corrupt
                self._read_point(copy, store)
        return {copy: point for copy, point in self._points.items() if copy in wanted}

    def _find_stores(self, copies: set[Path]) -> dict[Path, Path]:
        """Return copy to run store, of the stores whose lock a process in one of *copies* holds."""
        running, host = {}, ProcessIdentity.of_this_process().host
        for lock in list_named_locks(self.runs_root):
            holder = lock_holder(lock)
            folder = working_directory(holder.pid) if holder and holder.host == host else None
            for copy in copies.intersection([folder, *folder.parents] if folder else []):
                running[copy] = lock.with_suffix("")
        return running

    def _read_point(self, copy: Path, store: Path) -> None:
        beat = read_beat(store)
        if beat is None or beat.owner != lock_holder(lock_of(store)):
            return  # the heartbeat is of an earlier process
        point = self._points.get(copy)
        if point is None or point.first.owner != beat.owner:
            point = self._points[copy] = PointProgress(store, beat, beat)
        point.last = beat
        self._read_value(point, beat.epoch - 1)

    def _read_value(self, point: PointProgress, finished: int) -> None:
        """Read the value of the last of the *finished* epochs that has one, but none of them twice."""
        newer = range(finished, point.read_epochs, -1)
        point.read_epochs = max(finished, point.read_epochs)
        for epoch in newer:
            curves = read_curves(point.store, epoch)
            self.metric = self.metric or choose_metric(curves, self.requested)
            if self.metric in curves:
                point.value = curves[self.metric].last
                break


def read_curves(store: Path, epoch: int) -> dict[str, MetricCurve]:
    """Return the values of *epoch* in the run store *store*, as curves by ``split/metric``."""
    curves = [
        MetricCurve(split, metric, {epoch: value}, direction_of(metric))
        for split in Split
        for metric, value in read_epoch(store, split, epoch).items()
    ]
    return {curve.name: curve for curve in curves}


def choose_metric(curves: Mapping[str, MetricCurve], requested: str | None) -> str | None:
    """Return the ``split/metric`` of *curves* that the table of the sweep shows; None without one."""
    with suppress(ParamsError):
        return find_metric(Comparison((RunSummary("", None, metrics=curves),)), requested)
    return None


def compute_share(beat: Beat) -> float:
    """Return the finished share of all epochs, from 0 to 1. Validation does not count."""
    split = Split(beat.split)
    return compute_run_share(
        Progress(beat.epochs, epoch=beat.epoch, split=split, batch=beat.step, batches=beat.steps)
    )


@dataclass
class SweepProgress:
    """The outcomes of the points, printed as they finish."""

    total: int
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    before: int = 0
    """Points that had finished before the first one ran."""
    began: float = field(default_factory=time.monotonic)

    def report(self, name: str, error: Exception | None) -> None:
        """Record that the point *name* finished, with *error* or with an experiment."""
        if error is None:
            self.done.append(name)
            self._print(name, f"done{self.format_time_left()}")
        else:
            reason = str(error) if isinstance(error, StageError) else f"{type(error).__name__}: {error}"
            self.add_failed(name, reason)

    def add_done(self, name: str) -> None:
        """Record that the point *name* has an experiment already, and print that."""
        self.done.append(name)
        self._print(name, "done before")

    def add_failed(self, name: str, reason: str) -> None:
        """Record that the point *name* has no experiment, and print that."""
        self.failed[name] = reason
        self._print(name, "failed")

    def start(self) -> None:
        """Record that the points which are neither done nor failed run from now on."""
        self.before, self.began = self.count_finished(), time.monotonic()

    def count_finished(self) -> int:
        """Return the number of points that are done or have failed."""
        return len(self.done) + len(self.failed)

    def format_time_left(self, running: Iterable[PointProgress] = ()) -> str:
        """Return the time left, as in ``, about 2 min 5 s left``; empty if it is unknown, or none is left.

        The other points take as long as those that have run, and as the trained part of those in *running*.
        """
        shares = [(point.share, point.gained) for point in running]
        finished = self.count_finished()
        trained = finished - self.before + sum(gained for _, gained in shares)
        remaining = self.total - finished - sum(share for share, _ in shares)
        if trained <= 0 or remaining <= 0:
            return ""
        return f", about {format_duration((time.monotonic() - self.began) * remaining / trained)} left"

    def _print(self, name: str, outcome: str) -> None:
        # above the live table, if any
        print_line(f"[{self.count_finished()}/{self.total}] {name}: {outcome}")


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
        points = self._reader.read(job.copy_folder for job in running)
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, width=width - 1)
        table.add_column("point", ratio=1, overflow="fold")
        for title, least in (("epoch", 7), (_printable(self._reader.metric or ""), 7), ("left", 10)):
            table.add_column(title, justify="right", no_wrap=True, min_width=least)
        shown = running[: max(1, height - FIXED_LINES)]
        for job in shown:
            table.add_row(_printable(job.point.name), *format_cells(points.get(job.copy_folder)))
        hidden = f", {len(running) - len(shown)} not shown" if len(shown) < len(running) else ""
        return Group(table, Text(self._summarize(len(running), points.values()) + hidden))

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
    seconds = point.estimate_seconds_left(datetime.now(UTC))
    return (
        f"{point.last.epoch}/{point.last.epochs}",
        ABSENT if point.value is None else format_rounded(point.value, 3),
        ABSENT if seconds is None else format_duration(seconds),
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
    title = replace_unprintable(metric or "")
    if len(title) > MAX_TITLE:
        title = f"{title[: MAX_TITLE - 1]}…"
    runs = sort_runs(comparison, ViewOptions(sort=metric))
    rows = [("run", title, "epoch", "epochs", "time"), *(_row(run, metric) for run in runs)]
    longest, *widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    room = min(longest, WIDTH - sum(widths) - len("  ") * len(widths))
    lines = []
    for name, *cells in rows:
        numbers = "".join(f"  {align(cell, width, '>')}" for cell, width in zip(cells, widths, strict=True))
        lines += (
            [align(name, room, "<") + numbers] if cell_len(name) <= room else [name, " " * room + numbers]
        )
    return "\n".join([*lines, *list_notes(comparison)]) + "\n"


def repeats_table(comparison: Comparison, metric: str | None) -> str:
    """Return the table of the means of the points that differ in their seeds only, the best one first."""
    metrics = () if metric is None else (metric,)
    return text_table(average_repeats(comparison), ViewOptions(metrics, sort=metric))


def _row(run: RunSummary, metric: str | None) -> tuple[str, str, str, str, str]:
    curve = run.metrics.get(metric or "")
    return (
        replace_unprintable(run.name),
        ABSENT if curve is None else format_rounded(curve.ranking_value, 3),
        str((curve and curve.best_epoch) or ABSENT),
        str(run.epochs or ABSENT),
        ABSENT if run.seconds is None else format_duration(run.seconds),
    )
