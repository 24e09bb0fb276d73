"""Loggers of a run that was stopped: no line stands twice, none is lost, none of a run before survives."""

import errno
import json
import math
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from stages.contracts.errors import BuilderError, CheckpointError
from stages.loggers import (
    FileMetricLogger,
    InMemoryMetricLogger,
    JsonLinesMetricLogger,
    TsvMetricLogger,
)
from stages.loggers.lines import LineFile

STEPS = 4
EPOCHS = 3


def calls():
    """Every call of a run, with its epoch. One metric begins in the middle of an epoch, one stops there."""
    for epoch, step in product(range(1, EPOCHS + 1), range(1, STEPS + 1)):
        yield epoch, "log", (epoch, "Loss", 1 / (epoch + step), 64)
        if step > 1:
            yield epoch, "log", (epoch, "Top-K Accuracy é", step * 10.0, 64)
        if step < 3:
            yield epoch, "log", (epoch, "AUROC", math.nan, 2)
        if step == STEPS:
            yield epoch, "log_final", (epoch, "AUROC", 0.25 * epoch)


CALLS = list(calls())


class Plain:
    """A user's own logger, which cannot be cut."""

    def __init__(self):
        self.lines = []

    def log(self, *line):
        self.lines.append(line)

    log_final = log

    def flush(self):
        """Nothing to do."""

    close = flush


LOGGERS = {
    "files": lambda folder: FileMetricLogger(folder / "train", flush_seconds=60),
    "files, written at once": lambda folder: FileMetricLogger(folder / "train", flush_seconds=0),
    "table": lambda folder: TsvMetricLogger(folder / "train.tsv", flush_seconds=60),
    "json": lambda folder: JsonLinesMetricLogger(folder / "logs/train.jsonl", flush_seconds=60),
}
every_logger = pytest.mark.parametrize("make", LOGGERS.values(), ids=LOGGERS)


def tell(logger, calls):
    for _, method, arguments in calls:
        getattr(logger, method)(*arguments)


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def unbroken(make, folder):
    logger = make(folder)
    tell(logger, CALLS)
    logger.close()
    return files(folder)


def stopped(make, folder, saved, killed):
    """Where a run was after *saved* calls; what it wrote up to *killed*, when it was stopped, is there."""
    logger = make(folder)
    logger.cut(0)
    tell(logger, CALLS[:saved])
    position = logger.position()
    tell(logger, CALLS[saved:killed])
    logger.close()
    return position


@every_logger
@pytest.mark.parametrize("later", [1, 20])
def test_a_run_stopped_at_any_line_leaves_the_files_of_an_unbroken_one(make, later, tmp_path):
    expected = unbroken(make, tmp_path / "unbroken")
    for saved in range(1, len(CALLS)):
        folder = tmp_path / str(saved)
        position = stopped(make, folder, saved, saved + later)
        epoch = CALLS[saved - 1][0]

        logger = make(folder)
        logger.resume(epoch, position)
        assert logger.position() == position
        logger.close()

        logger = make(folder)
        logger.resume(epoch, position)
        tell(logger, CALLS[saved:])
        logger.close()

        assert files(folder) == expected, saved


@every_logger
def test_a_run_stopped_twice_leaves_the_files_of_an_unbroken_one(make, tmp_path):
    expected = unbroken(make, tmp_path / "unbroken")
    for saved in range(1, len(CALLS) - 3):
        folder = tmp_path / str(saved)
        position = stopped(make, folder, saved, saved + 7)

        for start in (saved, saved + 2):
            logger = make(folder)
            logger.resume(CALLS[start - 1][0], position)
            tell(logger, CALLS[start : start + 2])
            position = logger.position()
            logger.close()

        logger = make(folder)
        logger.resume(CALLS[saved + 3][0], position)
        tell(logger, CALLS[saved + 4 :])
        logger.close()

        assert files(folder) == expected, saved


@every_logger
@pytest.mark.parametrize("done", range(EPOCHS))
def test_a_run_that_goes_on_after_an_epoch_leaves_the_files_of_an_unbroken_one(make, done, tmp_path):
    """The run before had come further, and had a metric that is measured no more."""
    expected = unbroken(make, tmp_path / "unbroken")
    for killed in range(len(CALLS)):
        folder = tmp_path / str(killed)
        logger = make(folder)
        tell(logger, CALLS[:killed])
        if CALLS[killed][0] > done:
            logger.log(CALLS[killed][0], "Old", 1.0, 1)
            logger.log(EPOCHS + 2, "Old", 1.0, 1)
        else:
            tell(logger, CALLS[killed:])
        logger.close()

        logger = make(folder)
        logger.cut(done)
        tell(logger, [call for call in CALLS if call[0] > done])
        logger.close()

        if CALLS[killed][0] > done:
            assert files(folder) == expected, killed


@every_logger
def test_nothing_of_a_later_epoch_survives_a_run_that_is_over(make, tmp_path):
    unbroken(make, tmp_path / "long")
    make(tmp_path / "long").cut(1)
    short = make(tmp_path / "short")
    tell(short, [call for call in CALLS if call[0] == 1])
    short.close()

    assert files(tmp_path / "long") == files(tmp_path / "short")


@every_logger
def test_a_logger_that_has_not_begun_the_epoch_goes_on_too(make, tmp_path):
    """The valid split's, while the train split of epoch 2 runs."""
    expected = unbroken(make, tmp_path / "unbroken")
    first = [call for call in CALLS if call[0] == 1]
    for resumed in (False, True):
        folder = tmp_path / str(resumed)
        logger = make(folder)
        tell(logger, first)
        if resumed:  # a boundary behind it: this process has logged nothing yet
            logger.close()
            logger = make(folder)
            logger.cut(1)
        position = logger.position()
        tell(logger, CALLS[len(first) : len(first) + 5])
        logger.close()

        logger = make(folder)
        logger.resume(2, position)
        assert logger.position() == position
        tell(logger, CALLS[len(first) :])
        logger.close()

        assert files(folder) == expected


@every_logger
def test_what_a_position_says_survives_the_death_of_its_process(make, tmp_path):
    kind = next(name for name, each in LOGGERS.items() if each is make)
    code = (
        "import json, os, signal, sys; from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_resuming as t\n"
        f"logger = t.LOGGERS[{kind!r}](Path(sys.argv[1])); t.tell(logger, t.CALLS[:6])\n"
        "print(json.dumps(logger.position()), flush=True); t.tell(logger, t.CALLS[6:9])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a")], capture_output=True, text=True, check=False
    )
    assert died.returncode == -9, died.stderr
    position = json.loads(died.stdout)

    logger = make(tmp_path / "a")
    logger.resume(1, position)
    tell(logger, CALLS[6:])
    logger.close()

    assert files(tmp_path / "a") == unbroken(make, tmp_path / "b")


@pytest.mark.parametrize("harm", ["missing", "shorter"])
@every_logger
def test_a_file_that_lost_something_is_told_and_nothing_is_changed(make, harm, tmp_path):
    position = stopped(make, tmp_path, 8, 12)
    victim = sorted(path for path in tmp_path.rglob("*") if path.is_file() and "epoch-2" not in str(path))[-1]
    if harm == "missing":
        victim.unlink()
    else:
        os.truncate(victim, 3)
    before = files(tmp_path)

    with pytest.raises(CheckpointError, match=f"{victim.name} (is missing|has 3 bytes), and had \\d+ bytes"):
        make(tmp_path).resume(1, position)

    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["../a.log", "/etc/a.log", "epoch-1/../../a.log", "a\\b", "", "."])
def test_a_position_that_leads_elsewhere_is_refused(name, tmp_path):
    (tmp_path / "a.log").write_text("secret")

    with pytest.raises(CheckpointError, match="which is not below"):
        FileMetricLogger(tmp_path / "train").resume(1, {"files": {name: 0}})

    assert (tmp_path / "a.log").read_text() == "secret"


@pytest.mark.parametrize("position", [{}, {"files": None}, {"files": {"a": -1}}, {"files": {"a": True}}])
@pytest.mark.parametrize("make", [*LOGGERS.values(), lambda folder: InMemoryMetricLogger()])
def test_a_position_of_something_else_is_refused(make, position, tmp_path):
    with pytest.raises(CheckpointError):
        make(tmp_path).resume(1, position)


def test_a_table_of_another_name_is_refused(tmp_path):
    position = stopped(LOGGERS["table"], tmp_path, 3, 3)

    with pytest.raises(CheckpointError, match="log is 'train.tsv' and this logger's 'other.tsv'"):
        TsvMetricLogger(tmp_path / "other.tsv").resume(1, position)


@pytest.mark.parametrize("kind", ["table", "json"])
def test_a_file_of_something_else_is_not_cut(kind, tmp_path):
    logger = LOGGERS[kind](tmp_path)
    path = logger._rows.path
    path.parent.mkdir(exist_ok=True)
    path.write_text("do not\nlose this\n")

    with pytest.raises(BuilderError, match="holds something else"):
        logger.cut(0)

    assert path.read_text() == "do not\nlose this\n"


def test_only_log_files_are_removed_when_an_epoch_goes_on(tmp_path):
    position = stopped(LOGGERS["files"], tmp_path, 1, 5)
    (tmp_path / "train/epoch-1/notes.txt").write_text("mine")

    FileMetricLogger(tmp_path / "train").resume(1, position)

    assert set(files(tmp_path)) == {"train/epoch-1/Loss.log", "train/epoch-1/notes.txt"}


def test_memory_goes_back_and_counts_on():
    logger, whole = InMemoryMetricLogger(), InMemoryMetricLogger()
    tell(whole, CALLS)
    tell(logger, CALLS[:8])
    position = logger.position()
    tell(logger, CALLS[8:20])

    logger.resume(1, position)
    tell(logger, CALLS[8:])

    assert str(logger.rows) == str(whole.rows)
    logger.cut(1)
    assert {row.epoch for row in logger.rows} == {1}


def test_memory_of_a_new_process_counts_on_from_nothing():
    logger = InMemoryMetricLogger()
    tell(logger, CALLS[:3])

    fresh = InMemoryMetricLogger()
    fresh.resume(1, logger.position())
    fresh.log(1, "Loss", 1.0, 1)

    assert [row.iteration for row in fresh.rows] == [3]


class Full:
    """A file on a disk with *space* bytes left."""

    def __init__(self, file, space):
        self.file, self.space = file, space

    def write(self, data):
        if not self.space:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(bytes(data[: self.space]))
        self.space -= written
        return written

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("space", range(12))
def test_a_full_disk_loses_no_line_once_there_is_space(space, tmp_path):
    lines = LineFile(tmp_path / "a.log", "w", 60)
    lines._file = full = Full(lines._file, space)
    lines.write("1,1é\n")
    lines.write("2,2\n")
    if space < 10:
        with pytest.raises(OSError, match="No space"):
            lines.flush()
    full.space = 99
    lines.write("3,3\n")
    lines.close()

    assert (tmp_path / "a.log").read_text(encoding="utf-8") == "1,1é\n2,2\n3,3\n"
