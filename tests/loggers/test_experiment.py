"""The log of a run, `experiment.log`."""

import io
import logging
import multiprocessing
import re
import signal
import subprocess
import sys

import pytest

from stages.contracts.errors import DataError
from stages.loggers import ExperimentLog

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z (?P<rest>.*)")
log = logging.getLogger("my_lab.nets")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "artifacts/experiment.log"


@pytest.fixture(autouse=True)
def _root_level():
    """Set the level of the root logger to that of a new process."""
    level = logging.root.level
    logging.root.setLevel(logging.WARNING)
    yield
    logging.root.setLevel(level)


class UnprintableError(Exception):
    def __str__(self):
        raise NotImplementedError


def read_rests(path):
    """Return each line without its time."""
    return [LINE.fullmatch(line)["rest"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("level", "name", "line"),
    [
        (logging.INFO, "stages.learner.loop", " INFO stages::learner::loop: done 7"),
        (logging.WARNING, "my_lab", " WARN my_lab: done 7"),
        (logging.ERROR, "my_lab", "ERROR my_lab: done 7"),
        (logging.CRITICAL, "my_lab", "ERROR my_lab: done 7"),
        (logging.INFO, None, " INFO root: done 7"),
        (logging.DEBUG, "my_lab", None),
    ],
)
def test_line_has_the_format_of_burn(level, name, line, path, capsys):
    with ExperimentLog(path):
        logging.getLogger(name).log(level, "done %d", 7)

    assert read_rests(path) == ([] if line is None else [line])


def test_time_is_utc_in_microseconds(path):
    record = logging.makeLogRecord(
        {"name": "a", "levelno": logging.INFO, "msg": "x", "created": 1712282078.471521}
    )

    with ExperimentLog(path):
        logging.root.handle(record)

    assert path.read_text() == "2024-04-05T01:54:38.471521Z  INFO a: x\n"


def test_second_run_is_appended(path):
    for run in ("first", "second"):
        with ExperimentLog(path):
            log.info(run)

    assert read_rests(path) == [" INFO my_lab::nets: first", " INFO my_lab::nets: second"]


def test_traceback_follows_its_line(path, capsys):
    with ExperimentLog(path):
        try:
            _ = 1 / 0
        except ZeroDivisionError:
            log.exception("no luck")

    lines = path.read_text().splitlines()
    assert lines[0].endswith("ERROR my_lab::nets: no luck")
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("error", "line", "traceback"),
    [
        (ValueError("bad"), "PANIC => ValueError: bad", True),
        (KeyboardInterrupt(), "PANIC => KeyboardInterrupt: ", True),
        (DataError("no data"), "PANIC => DataError: no data", False),
        (UnprintableError(), "PANIC => UnprintableError: <exception str() failed>", True),
        (SystemExit(0), None, False),
    ],
)
def test_exception_that_leaves_the_block_is_logged_and_raised(error, line, traceback, path):
    handlers = list(logging.root.handlers)
    with pytest.raises(type(error)) as caught, ExperimentLog(path):
        raise error

    assert caught.value is error
    assert logging.root.handlers == handlers
    text = path.read_text()
    assert text.partition("\n")[0][28:] == (
        "" if line is None else f"ERROR stages::loggers::experiment: {line}"
    )
    assert ("Traceback" in text) is traceback


def test_end_of_the_block_restores_the_root_logger(path):
    before = [(handler, list(handler.filters)) for handler in logging.root.handlers]

    with ExperimentLog(path):
        assert logging.root.level == logging.INFO
    log.warning("later")

    assert logging.root.level == logging.WARNING
    assert [(handler, handler.filters) for handler in logging.root.handlers] == before
    assert path.read_text() == ""


def test_log_within_a_log_of_the_same_file_writes_no_line_twice(path):
    outer, handlers = ExperimentLog(path), list(logging.root.handlers)
    with pytest.raises(ValueError, match="bad"), outer, ExperimentLog(path), outer:
        log.info("once")
        raise ValueError("bad")

    assert path.read_text().count("once") == 1
    assert path.read_text().count("PANIC") == 1
    assert logging.root.handlers == handlers


def test_log_can_be_entered_twice(path):
    experiment = ExperimentLog(path)
    for run in ("first", "second"):
        with experiment:
            log.info(run)

    assert len(read_rests(path)) == 2


def test_output_of_other_handlers_does_not_change(path):
    screen = io.StringIO()
    handler = logging.StreamHandler(screen)
    logging.root.addHandler(handler)
    loud = logging.getLogger("my_lab.loud")
    loud.setLevel(logging.INFO)

    with ExperimentLog(path):
        log.info("quiet before, quiet now")
        log.warning("shown before, shown now")
        loud.info("asked for")
    loud.setLevel(logging.NOTSET)
    logging.root.removeHandler(handler)

    assert screen.getvalue() == "shown before, shown now\nasked for\n"
    assert len(read_rests(path)) == 3


def test_warnings_reach_the_terminal_if_there_is_no_other_handler(path):
    code = (
        "import logging, sys; from stages.loggers import ExperimentLog\n"
        "with ExperimentLog(sys.argv[1]):\n"
        "    logging.getLogger('a').info('only in the file')\n"
        "    logging.getLogger('a').warning('in both')\n"
    )

    finished = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )

    assert finished.stderr == "in both\n"
    assert read_rests(path) == [" INFO a: only in the file", " WARN a: in both"]


def test_record_that_cannot_be_written_does_not_stop_the_training(path, capsys):
    with ExperimentLog(path):
        log.info("%d", "no number")
        log.info("next record")

    assert read_rests(path) == [" INFO my_lab::nets: next record"]
    assert "Logging error" in capsys.readouterr().err


def test_line_of_a_step_is_buffered_until_another_message(path):
    with ExperimentLog(path, flush_seconds=60):
        for iteration in (1, 2, 3):
            log.info("Iteration %d", iteration)
        buffered = len(read_rests(path))
        log.info("Saving checkpoint 1")
        written = len(read_rests(path))

    assert (buffered, written) == (1, 4)


def test_line_of_a_step_is_buffered_for_at_most_flush_seconds(path):
    with ExperimentLog(path, flush_seconds=0):
        for iteration in (1, 2, 3):
            log.info("Iteration %d", iteration)
        assert len(read_rests(path)) == 3


def test_line_is_on_disk_after_its_process_was_killed(path):
    code = (
        "import logging, os, signal, sys; from stages.loggers import ExperimentLog\n"
        "with ExperimentLog(sys.argv[1]):\n"
        "    logging.info('Saving checkpoint 1')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)

    assert killed.returncode == -signal.SIGKILL
    assert read_rests(path) == [" INFO root: Saving checkpoint 1"]


def log_from_a_worker():
    log.info("from the worker")


def test_forked_worker_does_not_write_the_lines_of_its_parent(path):
    with ExperimentLog(path, flush_seconds=60):
        for iteration in (1, 2):
            log.info("Iteration %d", iteration)
        worker = multiprocessing.get_context("fork").Process(target=log_from_a_worker)
        worker.start()
        worker.join()

    assert sorted(read_rests(path)) == [
        " INFO my_lab::nets: Iteration 1",
        " INFO my_lab::nets: Iteration 2",
        " INFO my_lab::nets: from the worker",
    ]


def test_full_disk_does_not_hide_the_error_of_the_run(capsys):
    with pytest.raises(ValueError, match="mine"), ExperimentLog("/dev/full"):
        log.info("lost")
        raise ValueError("mine")


def test_full_disk_is_one_warning(capsys):
    with ExperimentLog("/dev/full"):
        log.info("one")
        log.info("another")

    assert (
        capsys.readouterr().err
        == "warning: /dev/full: No space left on device. Lines of this log may be missing\n"
    )
