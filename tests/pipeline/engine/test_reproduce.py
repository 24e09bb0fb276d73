"""Reproduction of one stage through DVC in this process: outcomes, restored outputs and errors."""

import errno
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from dvc.exceptions import ReproductionError
from dvc.repo import Repo

from pipeline.engine import dvc_patches
from pipeline.engine.reproduce import Outcome, reproduce, restore_outputs
from pipeline.project.inputs import find_missing_files
from pipeline.project.yaml_files import read_definition
from stages.contracts.errors import ParamsError, RunInterruptedError, StageError, StageFailedError
from stages.runs.layout import LOCKFILE_BACKUP

PIPELINE = """
stages:
  make:
    cmd: echo by DVC > out.txt
    params: [make]
    outs: [out.txt]
"""
OUT, LOCK, PARAMS = Path("out.txt"), Path("dvc.lock"), Path("params.yaml")


class Body:
    """The body of a stage that writes its output and records its calls."""

    def __init__(self, fail=None):
        self.calls = []
        self.fail = fail

    def __call__(self, name):
        self.calls.append((name, os.environ["DVC_STAGE"], os.environ["DVC_ROOT"]))
        if self.fail:
            self.fail()
        OUT.write_text(PARAMS.read_text())


@pytest.fixture
def body(tmp_path, monkeypatch):
    """The body of the stage `make`, in a new project in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    Repo.init(no_scm=True).close()
    Path("dvc.yaml").write_text(PIPELINE)
    PARAMS.write_text("make: 1\n")
    Path(".runs").mkdir()
    return Body()


def test_stage_runs_once_and_is_restored_from_the_run_cache(body, tmp_path):
    assert reproduce("make", run=body) is Outcome.RAN
    assert body.calls == [("make", "make", str(tmp_path))]
    assert not {"DVC_STAGE", "DVC_ROOT"} & set(os.environ)
    assert reproduce("make", run=body) is Outcome.UNCHANGED

    PARAMS.write_text("make: 2\n")
    assert reproduce("make", run=body) is Outcome.RAN
    PARAMS.write_text("make: 1\n")
    assert reproduce("make", run=body) is Outcome.RESTORED

    assert len(body.calls) == 2
    assert OUT.read_text() == "make: 1\n"


@pytest.mark.parametrize("name", ["size", "nfiles"])
def test_stage_is_not_restored_with_another_value_of_a_key_that_the_run_cache_ignores(body, name):
    """DVC leaves the keys ``size`` and ``nfiles`` out of the hash of an entry, also those of params."""
    contents = [
        f"make:\n  {name}: 1\n",
        f"make:\n  {name}: 2\n",
        "make:\n  other: 1\n",
        f"make:\n  {name}: 1\n",
    ]

    for content in contents:
        PARAMS.write_text(content)
        reproduce("make", run=body)
        assert OUT.read_text() == content


def test_reasons_of_a_stage_are_printed_if_it_runs_and_if_it_is_restored(body, capsys):
    for number in (1, 2, 1):
        PARAMS.write_text(f"make: {number}\n")
        reproduce("make", run=body)

    assert capsys.readouterr().out.splitlines() == [
        "make is out of date: make: 1 → 2",
        "make is out of date: make: 2 → 1",
    ]


def test_output_is_a_hard_link_if_the_cache_has_such_links(body):
    Path(".dvc/config.local").write_text("[cache]\ntype = hardlink\n")

    assert reproduce("make", run=body) is Outcome.RAN

    assert OUT.stat().st_nlink == 2


def test_environment_variables_are_restored(body, monkeypatch):
    monkeypatch.setenv("DVC_STAGE", "outer")

    reproduce("make", run=body)

    assert body.calls[0][1].endswith("make")
    assert os.environ["DVC_STAGE"] == "outer"


def test_dvc_runs_the_command_of_the_stage_outside_of_reproduce(body):
    reproduce("make", run=body)
    PARAMS.write_text("make: 2\n")

    with Repo() as repo:
        repo.reproduce("make", single_item=True)

    assert OUT.read_text() == "by DVC\n"
    assert len(body.calls) == 1


TWO_STAGES = f"""{PIPELINE}
  use:
    cmd: cp out.txt used.txt
    deps: [out.txt]
    outs: [used.txt]
"""


def test_lockfile_that_is_written_once_equals_that_of_dvc(body):
    Path("dvc.yaml").write_text(TWO_STAGES)
    with Repo() as repo:
        repo.reproduce()
    written = LOCK.read_text()
    LOCK.unlink()
    dvc_patches.apply()

    with Repo() as repo, dvc_patches.write_lockfiles_once():
        repo.reproduce()
        assert not LOCK.exists()

    assert LOCK.read_text() == written


def test_lockfile_that_is_written_once_is_not_written_after_an_error(body):
    Path("dvc.yaml").write_text(TWO_STAGES.replace("cp out.txt used.txt", "exit 1"))
    dvc_patches.apply()

    with pytest.raises(ReproductionError), Repo() as repo, dvc_patches.write_lockfiles_once():
        repo.reproduce()

    assert not LOCK.exists()


def test_log_level_of_dvc_is_restored(body, caplog):
    caplog.set_level(logging.DEBUG, "dvc")
    levels = []
    body.fail = lambda: levels.append(logging.getLogger("dvc").level)

    reproduce("make", run=body)

    assert levels == [logging.WARNING]
    assert logging.getLogger("dvc").level == logging.DEBUG


def build_failure(error):
    """Return a function that raises *error*."""

    def fail():
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [ValueError("of the user"), StageError("of the project"), KeyboardInterrupt()]
)
def test_failed_stage_keeps_the_previous_outputs(body, error, caplog):
    reproduce("make", run=body)
    before = LOCK.read_bytes()
    PARAMS.write_text("make: 2\n")

    with pytest.raises(type(error)) as caught:
        reproduce("make", run=Body(build_failure(error)))

    assert caught.value is error
    assert OUT.read_text() == "make: 1\n"
    assert LOCK.read_bytes() == before
    assert "could not be restored" not in caplog.text


def test_interrupted_stage_keeps_the_previous_outputs(body):
    reproduce("make", run=body)
    PARAMS.write_text("make: 2\n")
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with pytest.raises(RunInterruptedError):
            reproduce("make", run=Body(lambda: interrupt(received)))
    finally:
        signal.signal(signal.SIGTERM, before)

    assert OUT.read_text() == "make: 1\n"


def interrupt(received):
    """Send SIGTERM to this process, and raise the error of an interrupted stage."""
    signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]  # the previous handler has run
    raise RunInterruptedError("stopped", signal.SIGTERM)


@pytest.mark.parametrize("name", ["a {x}", "a}", "two\nlines"])
def test_folder_that_dvc_or_git_cannot_use_is_refused_before_the_stage_runs(name, body, monkeypatch):
    Path(name).mkdir()
    for path in ("dvc.yaml", PARAMS, ".dvc"):
        Path(path).rename(Path(name, path))
    monkeypatch.chdir(name)

    with pytest.raises(ParamsError, match=r"cannot use the path '.*', which contains '.*'\. Rename it"):
        reproduce("make", run=body)

    assert body.calls == []


def test_missing_output_is_reported(body):
    with pytest.raises(StageFailedError, match=r"out\.txt"):
        reproduce("make", run=lambda name: None)


def test_stage_whose_outputs_cannot_be_restored_is_named_in_a_warning(body, caplog):
    reproduce("make", run=body)
    OUT.unlink()
    OUT.mkdir()
    (OUT / "file").touch()
    Path("dvc.yaml").write_text("stages: 3")

    restore_outputs("make")

    assert "the previous outputs of make could not be restored" in caplog.text
    assert "dvc.yaml' validation failed" in caplog.text
    assert "run: dvc checkout make" in caplog.text


def test_truncated_lockfile_is_repaired_before_the_stage_runs(body):
    reproduce("make", run=body)
    reproduce("make", run=body)
    assert LOCKFILE_BACKUP.read_bytes() == LOCK.read_bytes()
    LOCK.write_bytes(LOCK.read_bytes()[:30])

    assert reproduce("make", run=body) is Outcome.UNCHANGED


def test_lockfile_of_another_program_is_refused_before_the_stage_runs(body):
    LOCK.write_text("stages: 3\n")

    with pytest.raises(StageError, match=r"dvc.lock is not a dvc.lock"):
        reproduce("make", run=body)

    assert body.calls == []


@pytest.mark.parametrize(
    ("content", "reported"), [("stages: 3\n", "dvc.yaml"), ("stages: {other: {cmd: x}}\n", "make")]
)
def test_stage_that_dvc_cannot_load_is_reported_with_the_message_of_dvc(body, content, reported):
    Path("dvc.yaml").write_text(content)

    with pytest.raises(StageFailedError, match=reported):
        reproduce("make", run=body)


@pytest.mark.parametrize(
    ("place", "writer"),
    [
        ("dvc.yaml", "{cmd: echo > raw/file, outs: [raw/file]}"),
        ("dvc.yaml", "{wdir: raw, cmd: echo > file, outs: [file]}"),
        ("dvc.yaml", "{matrix: {n: [file]}, cmd: 'echo > raw/${item.n}', outs: ['raw/${item.n}']}"),
        ("raw/dvc.yaml", "{cmd: echo > file, outs: [file]}"),
    ],
)
def test_missing_output_of_another_stage_is_reported_with_the_command_that_makes_it(place, writer, body):
    stages = PIPELINE.replace("    params", "    deps: [raw/file]\n    params")
    Path("raw").mkdir()
    Path("raw/dvc.yaml").write_text("stages:\n")
    Path("dvc.yaml").write_text(stages)
    Path(place).write_text(f"{Path(place).read_text()}  draw: {writer}\n")

    with pytest.raises(
        StageFailedError, match="make: the dependency raw/file does not exist. Run `dvc repro make`"
    ):
        reproduce("make", run=body)

    assert body.calls == []


@pytest.mark.parametrize(
    ("file", "remedy"), [("", "Correct the path"), ("raw.dvc", "Run `dvc pull raw.dvc`")]
)
def test_missing_dependency_that_no_stage_writes_is_reported_with_what_to_do(file, remedy, body):
    Path("dvc.yaml").write_text(PIPELINE.replace("    params", "    deps: [raw]\n    params"))
    if file:
        Path(file).write_text("outs: []\n")

    with pytest.raises(StageFailedError) as failure:
        reproduce("make", run=body)

    [line] = find_missing_files(read_definition()).values()
    assert str(failure.value) == line
    assert line.endswith(remedy)


@pytest.mark.parametrize("occurrence", range(4))
def test_output_folder_that_cannot_be_listed_once_is_never_recorded_as_an_empty_one(
    occurrence, body, monkeypatch
):
    Path("dvc.yaml").write_text(PIPELINE.replace("outs: [out.txt]", "outs: [out]"))
    list_folder, listed = os.scandir, []

    def refuse(path="."):
        if Path(path).name == "out":
            listed.append(path)
            if len(listed) == occurrence + 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return list_folder(path)

    def write(name):
        Path("out").mkdir()
        Path("out/file.txt").write_text("1")
        monkeypatch.setattr(os, "scandir", refuse)

    with suppress(OSError):
        reproduce("make", run=write)

    assert not LOCK.exists() or "nfiles: 1" in LOCK.read_text()
