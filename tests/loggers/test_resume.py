"""Loggers of a resumed run: no line is duplicated, lost, or stale."""

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
from stages.contracts.events import IterationLogger
from stages.loggers import FileMetricLogger, InMemoryMetricLogger, JsonLinesMetricLogger, TsvMetricLogger
from stages.loggers.line_file import LineFile

STEPS = 4
EPOCHS = 3


def generate_calls():
    """Yield each call of a run with its epoch and step.

    One metric starts within an epoch, and one ends there.
    """
    for epoch, step in product(range(1, EPOCHS + 1), range(1, STEPS + 1)):
        yield epoch, step, "log", (epoch, "Loss", 1 / (epoch + step), 64)
        if step > 1:
            yield epoch, step, "log", (epoch, "Top-K Accuracy é", step * 10.0, 64)
        if step < 3:
            yield epoch, step, "log", (epoch, "AUROC", math.nan, 2)
        if step == STEPS:
            yield epoch, step, "log_final", (epoch, "AUROC", 0.25 * epoch)


CALLS = list(generate_calls())


LOGGERS = {
    "files": lambda folder: FileMetricLogger(folder / "train", flush_seconds=60),
    "files, unbuffered": lambda folder: FileMetricLogger(folder / "train", flush_seconds=0),
    "table": lambda folder: TsvMetricLogger(folder / "train.tsv", flush_seconds=60),
    "json": lambda folder: JsonLinesMetricLogger(folder / "logs/train.jsonl", flush_seconds=60),
}
every_logger = pytest.mark.parametrize("make", LOGGERS.values(), ids=LOGGERS)


def apply(logger, calls):
    for epoch, step, method, arguments in calls:
        if isinstance(logger, IterationLogger):
            logger.begin_batch(epoch, step)
        getattr(logger, method)(*arguments)


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def log_uninterrupted(make, folder):
    """Log all calls and return the content of each file."""
    logger = make(folder)
    apply(logger, CALLS)
    logger.close()
    return files(folder)


def log_until_kill(make, folder, saved, killed):
    """Log *killed* calls and return the position of the logger after *saved* of them."""
    logger = make(folder)
    logger.cut(0)
    apply(logger, CALLS[:saved])
    position = logger.position()
    apply(logger, CALLS[saved:killed])
    logger.close()
    return position


@every_logger
@pytest.mark.parametrize("later", [1, 20])
def test_run_resumed_at_any_line_writes_the_files_of_an_uninterrupted_run(make, later, tmp_path):
    expected = log_uninterrupted(make, tmp_path / "uninterrupted")
    for saved in range(1, len(CALLS)):
        folder = tmp_path / str(saved)
        position = log_until_kill(make, folder, saved, saved + later)
        epoch = CALLS[saved - 1][0]

        logger = make(folder)
        logger.resume(epoch, position)
        assert logger.position() == position
        logger.close()

        logger = make(folder)
        logger.resume(epoch, position)
        apply(logger, CALLS[saved:])
        logger.close()

        assert files(folder) == expected, saved


@every_logger
def test_run_resumed_twice_writes_the_files_of_an_uninterrupted_run(make, tmp_path):
    expected = log_uninterrupted(make, tmp_path / "uninterrupted")
    for saved in range(1, len(CALLS) - 3):
        folder = tmp_path / str(saved)
        position = log_until_kill(make, folder, saved, saved + 7)

        for start in (saved, saved + 2):
            logger = make(folder)
            logger.resume(CALLS[start - 1][0], position)
            apply(logger, CALLS[start : start + 2])
            position = logger.position()
            logger.close()

        logger = make(folder)
        logger.resume(CALLS[saved + 3][0], position)
        apply(logger, CALLS[saved + 4 :])
        logger.close()

        assert files(folder) == expected, saved


@every_logger
@pytest.mark.parametrize("finished", range(EPOCHS))
def test_run_resumed_after_an_epoch_writes_the_files_of_an_uninterrupted_run(make, finished, tmp_path):
    """The previous run had logged later epochs, and a metric that the resumed run does not have."""
    expected = log_uninterrupted(make, tmp_path / "uninterrupted")
    for killed in range(len(CALLS)):
        folder = tmp_path / str(killed)
        logger = make(folder)
        apply(logger, CALLS[:killed])
        if CALLS[killed][0] > finished:
            logger.log(CALLS[killed][0], "Old", 1.0, 1)
            logger.log(EPOCHS + 2, "Old", 1.0, 1)
        else:
            apply(logger, CALLS[killed:])
        logger.close()

        logger = make(folder)
        logger.cut(finished)
        apply(logger, [call for call in CALLS if call[0] > finished])
        logger.close()

        if CALLS[killed][0] > finished:
            assert files(folder) == expected, killed


@every_logger
def test_cut_removes_later_epochs_of_a_finished_run(make, tmp_path):
    log_uninterrupted(make, tmp_path / "long")
    make(tmp_path / "long").cut(1)
    short = make(tmp_path / "short")
    apply(short, [call for call in CALLS if call[0] == 1])
    short.close()

    assert files(tmp_path / "long") == files(tmp_path / "short")


@every_logger
def test_logger_resumes_before_its_first_line_of_the_epoch(make, tmp_path):
    """The logger of the valid split is in this state while the train split of epoch 2 runs."""
    expected = log_uninterrupted(make, tmp_path / "uninterrupted")
    first = [call for call in CALLS if call[0] == 1]
    for resumed in (False, True):
        folder = tmp_path / str(resumed)
        logger = make(folder)
        apply(logger, first)
        if resumed:  # this process was resumed after epoch 1 and has not logged a line
            logger.close()
            logger = make(folder)
            logger.cut(1)
        position = logger.position()
        apply(logger, CALLS[len(first) : len(first) + 5])
        logger.close()

        logger = make(folder)
        logger.resume(2, position)
        assert logger.position() == position
        apply(logger, CALLS[len(first) :])
        logger.close()

        assert files(folder) == expected


@every_logger
def test_position_is_valid_after_its_process_was_killed(make, tmp_path):
    kind = next(name for name, each in LOGGERS.items() if each is make)
    code = (
        "import json, os, signal, sys; from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_resume as t\n"
        f"logger = t.LOGGERS[{kind!r}](Path(sys.argv[1])); t.apply(logger, t.CALLS[:6])\n"
        "print(json.dumps(logger.position()), flush=True); t.apply(logger, t.CALLS[6:9])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a")], capture_output=True, text=True, check=False
    )
    assert killed.returncode == -9, killed.stderr
    position = json.loads(killed.stdout)

    logger = make(tmp_path / "a")
    logger.resume(1, position)
    apply(logger, CALLS[6:])
    logger.close()

    assert files(tmp_path / "a") == log_uninterrupted(make, tmp_path / "b")


@pytest.mark.parametrize("damage", ["missing", "shorter"])
@every_logger
def test_missing_or_short_file_is_reported_and_no_file_is_changed(make, damage, tmp_path):
    position = log_until_kill(make, tmp_path, 8, 12)
    victim = sorted(path for path in tmp_path.rglob("*") if path.is_file() and "epoch-2" not in str(path))[-1]
    if damage == "missing":
        victim.unlink()
    else:
        os.truncate(victim, 3)
    before = files(tmp_path)

    with pytest.raises(CheckpointError, match=f"{victim.name} (is missing|has 3 bytes), but had \\d+ bytes"):
        make(tmp_path).resume(1, position)

    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["../a.log", "/etc/a.log", "epoch-1/../../a.log", "a\\b", "", "."])
def test_position_outside_the_directory_is_rejected(name, tmp_path):
    (tmp_path / "a.log").write_text("secret")

    with pytest.raises(CheckpointError, match="which is not below"):
        FileMetricLogger(tmp_path / "train").resume(1, {"files": {name: 0}})

    assert (tmp_path / "a.log").read_text() == "secret"


@pytest.mark.parametrize("position", [{}, {"files": None}, {"files": {"a": -1}}, {"files": {"a": True}}])
@pytest.mark.parametrize("make", [*LOGGERS.values(), lambda folder: InMemoryMetricLogger()])
def test_invalid_position_is_rejected(make, position, tmp_path):
    with pytest.raises(CheckpointError):
        make(tmp_path).resume(1, position)


def test_position_of_a_table_with_another_name_is_rejected(tmp_path):
    position = log_until_kill(LOGGERS["table"], tmp_path, 3, 3)

    with pytest.raises(
        CheckpointError, match="log of the checkpoint is 'train.tsv', but this logger writes 'other.tsv'"
    ):
        TsvMetricLogger(tmp_path / "other.tsv").resume(1, position)


@pytest.mark.parametrize(("kind", "name"), [("table", "train.tsv"), ("json", "logs/train.jsonl")])
def test_file_of_another_program_is_not_cut(kind, name, tmp_path):
    logger = LOGGERS[kind](tmp_path)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("do not\nlose this\n")

    with pytest.raises(BuilderError, match="was not written by this logger"):
        logger.cut(0)

    assert path.read_text() == "do not\nlose this\n"


def test_resume_within_an_epoch_removes_only_log_files(tmp_path):
    position = log_until_kill(LOGGERS["files"], tmp_path, 1, 5)
    (tmp_path / "train/epoch-1/notes.txt").write_text("mine")

    FileMetricLogger(tmp_path / "train").resume(1, position)

    assert set(files(tmp_path)) == {"train/epoch-1/Loss.log", "train/epoch-1/notes.txt"}


def test_memory_resumes_in_the_same_process():
    logger, uninterrupted = InMemoryMetricLogger(), InMemoryMetricLogger()
    apply(uninterrupted, CALLS)
    apply(logger, CALLS[:8])
    position = logger.position()
    apply(logger, CALLS[8:20])

    logger.resume(1, position)
    apply(logger, CALLS[8:])

    assert str(logger.rows) == str(uninterrupted.rows)
    logger.cut(1)
    assert {row.epoch for row in logger.rows} == {1}


class FullDisk:
    """A file on a disk with *space* free bytes."""

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
def test_lines_that_did_not_fit_on_a_full_disk_are_written_later(space, tmp_path):
    lines = LineFile(tmp_path / "a.log", "w", 60)
    lines._file = disk = FullDisk(lines._file, space)
    lines.write("1,1é\n")
    lines.write("2,2\n")
    if space < 10:
        with pytest.raises(OSError, match="No space"):
            lines.flush()
    disk.space = 99
    lines.write("3,3\n")
    lines.close()

    assert (tmp_path / "a.log").read_text(encoding="utf-8") == "1,1é\n2,2\n3,3\n"
