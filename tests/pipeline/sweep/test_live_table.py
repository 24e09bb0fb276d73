"""The live table of a sweep: its values are those of the run stores, and the terminal is clean afterwards."""

import fcntl
import io
import json
import os
import re
import select
import struct
import subprocess
import termios
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console
from waiting import LIMIT_SECONDS

from pipeline.engine.project_copy import FrozenProject
from pipeline.sweep.job import Job
from pipeline.sweep.plan import PlannedPoint, Point
from pipeline.sweep.progress import LiveTable, PointProgress, ProgressReader, SweepProgress
from stages.contracts.events import Progress
from stages.contracts.history import Split
from stages.loggers.log_files import FileMetricLogger
from stages.runs.key import KEY_LENGTH
from stages.runs.layout import lock_of
from stages.runs.overview import Beat, HeartbeatRenderer
from stages.runs.store import open_store
from stages.system.processes import ProcessIdentity

RATE = "build_learner.optimizer.learning_rate"
COLUMNS = 80
START = datetime(2026, 1, 1, tzinfo=UTC)
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


class Terminal:
    """A terminal of 24 rows and 80 columns, with the output and the exit code of the command in it."""

    def __init__(self, handle):
        self.handle = handle
        self.text = ""
        self.code = None

    def wait_for(self, pattern):
        """Read until the output matches *pattern*."""
        end = time.monotonic() + LIMIT_SECONDS
        while not re.search(pattern, self.text):
            assert self.read(), self.text
            assert time.monotonic() < end, self.text

    def read(self):
        """Read more output; return false at the end."""
        if select.select([self.handle], [], [], 1)[0]:
            try:
                self.text += os.read(self.handle, 1 << 16).decode()
            except OSError:  # the command has closed the terminal
                return False
        return True

    def lines(self):
        """Return the lines that the terminal shows in the end."""
        lines, row, column = [""], 0, 0
        for code, text in re.findall(r"(\x1b\[[?\d;]*[A-Za-z]|[\r\n])|([^\x1b\r\n]+)", self.text):
            if code == "\r":
                column = 0
            elif code == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif code.endswith("A"):
                row -= int(code[2:-1] or 1)
            elif code == "\x1b[2K":
                lines[row] = ""
            elif text:
                lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
                column += len(text)
        return [line.rstrip() for line in lines]


@contextmanager
def run_in_terminal(sweep):
    """Start *sweep* in a terminal, yield the terminal, and wait for the end of the sweep."""
    handle, other = os.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    opened = ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(other)]  # it controls the session then
    environment = {name: value for name, value in sweep.environment.items() if name != "COLUMNS"}
    process = subprocess.Popen(
        [*opened, *sweep.command], cwd=sweep.project.folder, env=environment | {"TERM": "xterm"},
        start_new_session=True,
    )  # fmt: skip
    try:
        terminal = Terminal(handle)
        yield terminal
        os.close(other)
        while terminal.read():
            pass
        terminal.code = process.wait(LIMIT_SECONDS)
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
def test_terminal_has_a_table_of_the_points_in_progress_and_is_clean_after_ctrl_c(project, sweep_in):
    project.edit("params.yaml", "num_epochs: 2", "num_epochs: 200")
    sweep = sweep_in(project, "-j", "2", "-S", f"{RATE}=0.001,0.002")

    with run_in_terminal(sweep) as terminal:
        terminal.wait_for(r"learning_rate=0.00\d +\d+/200 +\d+\.\d{3} ")
        os.write(terminal.handle, b"\x03")

    assert terminal.code == 130
    parts = re.split(r"\x1b\[[?\d;]*[A-Za-z]|[\r\n]", terminal.text)
    assert max(map(len, parts)) <= COLUMNS
    assert "2 points: 0 done" in parts
    assert re.search(r"point +epoch +valid/Accuracy +left", "".join(parts))
    assert terminal.text.rindex(SHOW_CURSOR) > terminal.text.rindex(HIDE_CURSOR)
    assert [line for line in terminal.lines() if line and line != "^C"] == [
        "2 points, 2 at a time on threads",
        "0 of 2 points are done. Run the same command again to resume",
        "SIGINT: unfinished work is not recorded. Run the same command again to resume",
    ]


@pytest.fixture
def training(tmp_path, monkeypatch):
    """Yield the copy of a point and its run store, in which this process trains epoch 3 of 4."""
    copy = tmp_path / ".runs/sweep/point.copy"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    with open_store(tmp_path / ".runs", {"params": 1}) as store:
        for split, metrics in ((Split.TRAIN, ("Loss",)), (Split.VALID, ("Loss", "Accuracy"))):
            logger = FileMetricLogger(store.path / split)
            for epoch, value in ((1, 0.5), (2, 0.75), (3, 0.9)):
                for metric in metrics:
                    logger.log(epoch, metric, value, 8)
            logger.close()
        HeartbeatRenderer(store.path).start(Progress(4, epoch=3, batch=5, batches=10))
        yield copy, store.path


@pytest.mark.parametrize(
    ("requested", "metric"),
    [(None, "valid/Accuracy"), ("loss", "valid/Loss"), ("train/Loss", "train/Loss")],
)
def test_value_of_a_point_is_that_of_its_last_finished_epoch(training, requested, metric):
    copy, store = training
    reader = ProgressReader(store.parent, requested)

    [point] = reader.read([copy]).values()

    assert (point.last.epoch, point.last.epochs, point.share, point.gained) == (3, 4, 0.625, 0.0)
    assert (reader.metric, point.value, point.estimate_seconds_left(START)) == (metric, 0.75, None)


def test_point_keeps_its_last_progress_when_its_files_become_unreadable(training):
    copy, store = training
    reader = ProgressReader(store.parent, None)
    [before] = reader.read([copy]).values()

    (store / "heartbeat.json").write_text("{")
    lock_of(store).unlink()

    assert reader.read([copy]) == {copy: before}
    assert before.value == 0.75
    assert not ProgressReader(store.parent, None).read([copy])
    assert not ProgressReader(store / "missing", None).read([copy])


def test_point_of_another_host_is_only_running(tmp_path, monkeypatch):
    """The process there may have the number of one that works in the copy here."""
    copy, store = tmp_path / ".runs/sweep/point.copy", tmp_path / ".runs" / ("0" * KEY_LENGTH)
    for folder in (copy, store):
        folder.mkdir(parents=True)
    monkeypatch.chdir(copy)
    HeartbeatRenderer(store).start(Progress(4, epoch=3))
    beat = json.loads((store / "heartbeat.json").read_text()) | {"host": "elsewhere"}
    (store / "heartbeat.json").write_text(json.dumps(beat))
    lock_of(store).write_text(json.dumps({name: beat[name] for name in ("pid", "host", "boot", "started")}))

    text = draw(copy, SweepProgress(3, done=["a"], before=1), "point")

    assert re.search(r"^point +running *$", text, re.MULTILINE)
    assert text.rstrip().endswith("\n3 points: 1 done, 1 waiting")


def draw(copy, progress, *names):
    """Return the table of points, which have copies next to *copy*, on 80 columns."""
    root = copy.parents[2]
    base = FrozenProject(root, root, "", "")
    for name in names:
        (copy.parent / f"{name}.copy").mkdir(exist_ok=True)
    jobs = [Job(base, PlannedPoint(Point((), ()), name), Path()) for name in (*names, "waiting")]
    console = Console(file=io.StringIO(), width=COLUMNS)
    console.print(LiveTable(progress, jobs, None).draw(COLUMNS, 8))
    return console.file.getvalue()


def test_long_names_and_many_points_fit_the_terminal(training):
    copy, _ = training
    names = ["point", *(f"{'a-long-name,' * 8}{number}" for number in range(9))]

    lines = draw(copy, SweepProgress(11), *names).splitlines()

    assert max(map(len, lines)) < COLUMNS
    assert re.fullmatch(r"point +3/4 +0.750 +-", lines[1].rstrip())
    assert names[1] in "".join(line.split("  ")[0].strip() for line in lines)
    assert lines[-1] == "11 points: 0 done, 1 waiting, 6 not shown"


def beat(epoch, step, seconds, split="train"):
    owner = ProcessIdentity.of_this_process()
    return Beat(owner, epoch, 4, split, step, 10, START + timedelta(seconds=seconds), first_epoch=1)


@pytest.mark.parametrize(
    ("first", "last", "now", "left"),
    [
        (beat(1, 0, 0), beat(2, 0, 10), 10, 30.0),
        (beat(1, 0, 0), beat(2, 0, 10), 14, 26.0),
        (beat(3, 0, 0), beat(3, 5, 10), 10, 30.0),  # resumed after epoch 2
        (beat(1, 0, 0), beat(2, 3, 20, "valid"), 20, 20.0),
        (beat(1, 0, 0), beat(2, 0, 10), 99, 0.0),
        (beat(1, 5, 0), beat(1, 5, 10), 10, None),
        (beat(1, 0, 0), beat(4, 10, 40), 40, None),
    ],
)
def test_time_left_is_that_of_the_trained_share(first, last, now, left):
    seconds = PointProgress(Path(), first, last).estimate_seconds_left(START + timedelta(seconds=now))

    assert seconds == pytest.approx(left)


def test_time_left_of_a_sweep_has_the_shares_of_points_in_progress():
    progress = SweepProgress(5, done=["before", "a"], before=1, began=time.monotonic() - 3000)
    resumed = PointProgress(Path(), beat(2, 0, 0), beat(4, 0, 10))

    assert progress.format_time_left() == ", about 2 h 30 min left"
    assert progress.format_time_left([resumed]) == ", about 1 h 15 min left"
    assert SweepProgress(5).format_time_left() == ""
