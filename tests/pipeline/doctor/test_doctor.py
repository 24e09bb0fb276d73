"""The diagnostics of `learner doctor`, their remedies, and the repairs of --fix."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest
from waiting import LIMIT_SECONDS, wait_until

from pipeline.doctor import environment
from pipeline.doctor.diagnostics import Level, drop_duplicates, ok, run_checks
from pipeline.doctor.environment import (
    check_free_space,
    check_prefect,
    check_remotes,
)
from pipeline.doctor.project import check_project, check_untracked_files
from pipeline.doctor.stale_files import check_experiments, check_locks
from stages.contracts.errors import ParamsError


@pytest.fixture
def silent_port():
    """Yield the port of a server that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.long  # the checks of this file and of engine/test_patches.py, each alone
def test_repaired_project_has_no_problem_and_exit_code_0(finished, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "state").mkdir(mode=0o700)
    finished.dvc("remote", "add", "-d", "store", str(tmp_path / "store")).ok()
    finished.dvc("config", "--local", "core.site_cache_dir", str(tmp_path / "state")).ok()
    lock = finished.folder / ".dvc/tmp/rwlock"
    lock.write_text("")

    done = finished.learner("doctor", "--timeout", "600", "--fix")

    assert (done.code, done.err) == (0, ""), done.text
    fixed, *lines = done.out.splitlines()
    assert fixed == f"fixed: {lock} is truncated, as by a kill or a full disk, and every DVC command fails"
    levels = {line.split()[1]: line.split()[0] for line in lines if line[0] != " "}
    subjects = "patches params disk prefect remote untracked git locks state journal experiments runs"
    assert levels == dict.fromkeys(subjects.split(), "ok")
    assert "no API is configured: runs are not recorded in Prefect" in done.out
    assert re.search(r"a checkpoint takes [\d.]+ MB: training with 3 and one more", done.out)
    assert re.search(r"patches +replaced private names: \d+, all as expected", done.out)
    assert "1 finished" in done.out


def test_each_problem_has_a_remedy(finished, monkeypatch, tmp_path):
    monkeypatch.chdir(finished.folder)
    Path("nets.py").write_text("from stages.models import Mlp as Net\n")
    Path("mine.npz").touch()
    Path("notes").touch()
    with Path(".git/info/exclude").open("a") as ignored:
        ignored.write("mine.npz\n")
    finished.use_model("nets:Net")
    finished.edit("params.yaml", "kind: digits\n    path: null", "kind: npz\n    path: mine.npz")
    finished.edit("params.yaml", "build_learner:", "build_learner:\n  checkpoint: {path: a.pt}")
    finished.dvc("remote", "add", "disk", str(tmp_path / "unmounted/store")).ok()

    checks = (check_project, check_untracked_files, partial(check_remotes, LIMIT_SECONDS))
    found = [each for check in checks for each in check()]

    problems, warnings = (
        "\n".join(f"{each.subject}: {each.message}: {each.remedy}" for each in found if each.level is level)
        for level in (Level.PROBLEM, Level.WARNING)
    )
    assert re.search("deps: .*add to deps of fit in dvc.yaml:\n      - nets.py", problems)
    assert "build_learner.checkpoint.path: the file or folder 'a.pt' does not exist: Correct the" in problems
    assert "untracked: a stage uses nets.py, which neither git nor DVC tracks" in problems
    assert "git add mine.npz; or, for data, dvc add mine.npz" in problems
    assert re.search("untracked: .*`dvc exp run --temp` does not copy them: notes:", warnings)
    assert re.search(f"remote disk: .* is missing: only {tmp_path} exists", warnings)
    assert "remotes: none of disk is the default: dvc remote default disk" in warnings


def test_data_that_a_stage_of_the_user_writes_is_tracked(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)
    Path("drawn").mkdir()
    Path("drawn/mine.npz").touch()
    finished.edit("params.yaml", "kind: digits\n    path: null", "kind: npz\n    path: drawn/mine.npz")
    finished.edit(
        "dvc.yaml",
        "\nstages:\n",
        "\n      drawn: drawn\n\nstages:\n  draw:\n    cmd: x\n    outs: ['${paths.drawn}']\n",
    )

    assert not [
        found
        for found in check_untracked_files()
        if "drawn" in found.message and found.level is Level.PROBLEM
    ]


def test_remote_that_does_not_answer_is_a_problem(project, monkeypatch, silent_port):
    pytest.importorskip("dvc_s3", reason="S3 needs the extra s3")
    project.dvc("remote", "add", "-d", "far", "s3://bucket/store").ok()
    project.dvc("remote", "modify", "far", "endpointurl", f"http://127.0.0.1:{silent_port}").ok()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(project.folder)

    (found,) = check_remotes(timeout_seconds=2)

    assert (found.subject, found.level) == ("remote far", Level.PROBLEM)
    assert found.message == "s3://bucket/store did not answer within 2 seconds"


def test_prefect_api_that_does_not_answer_is_a_problem(monkeypatch, silent_port):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{silent_port}/api")

    (found,) = check_prefect(timeout_seconds=0.5)

    assert found.level is Level.PROBLEM
    assert "/api: timed out" in found.message
    assert "Run `prefect server start`" in found.remedy


def test_truncated_lock_and_lockfile_are_repaired(finished, monkeypatch):
    """DVC writes its lock list in place. A kill can leave it empty, and then every DVC command fails."""
    monkeypatch.chdir(finished.folder)
    lock, record = finished.folder / ".dvc/tmp/rwlock", finished.folder / "dvc.lock"
    recorded = record.read_bytes()
    lock.write_text("")
    assert "structure is corrupted" in finished.dvc("repro", "-f").text
    record.write_text("")

    found = list(check_locks())
    for each in found:
        each.fix()

    assert [each.level for each in found] == [Level.PROBLEM, Level.PROBLEM]
    assert re.search(r"rwlock is truncated, .*: rm \S+rwlock", f"{found[0].message}: {found[0].remedy}")
    assert "dvc.lock is truncated" in found[1].message
    assert "--fix` restores it from .runs/dvc.lock" in found[1].remedy
    assert not lock.exists()
    assert record.read_bytes() == recorded
    assert [each.message for each in check_locks()] == ["no lock is held"]


def test_only_entries_of_ended_processes_are_removed_from_a_lock(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)
    lock = finished.folder / ".dvc/tmp/rwlock"
    ended = subprocess.Popen(["true"])
    ended.wait()
    stale, active = (
        {"pid": ended.pid, "cmd": "dvc repro"},
        {"pid": os.getpid(), "cmd": "dvc commit"},
    )
    lock.write_text(json.dumps({"write": {"a": stale, "b": active}, "read": {"c": [stale, active]}}))

    found = list(check_locks())

    assert [(each.level, each.fix is None) for each in found] == [("ok", True), ("warning", False)]
    assert found[0].message == f"pid {os.getpid()} is running in this project: dvc commit"
    assert f"names pid {ended.pid}, which has ended" in found[1].message
    found[1].fix()
    assert json.loads(lock.read_text()) == {"write": {"b": active}, "read": {"c": [active]}}


def test_lock_of_a_reused_process_number_is_reported_and_removed(finished, monkeypatch):
    """DVC compares process numbers only, so it would wait forever for the other process."""
    monkeypatch.chdir(finished.folder)
    lock = finished.folder / ".dvc/tmp/rwlock"
    lock.write_text(json.dumps({"write": {"a": {"pid": os.getpid(), "cmd": "dvc repro"}}, "read": {}}))
    os.utime(lock, (1, 1))

    (found,) = check_locks()

    assert found.level is Level.PROBLEM
    assert "which another process has now: DVC waits for it forever" in found.message
    found.fix()
    assert [each.message for each in check_locks()] == ["no lock is held"]


def test_lock_that_dvc_is_writing_is_kept(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)
    (finished.folder / ".dvc/tmp/rwlock").write_text("")
    with (finished.folder / ".dvc/tmp/rwlock.lock").open("a") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)

        (found,) = check_locks()

    assert (found.level, found.fix) == (Level.OK, None)
    assert "a DVC process is writing" in found.message


def test_killed_experiment_is_removed_and_a_running_one_is_not(finished, monkeypatch, tmp_path):
    monkeypatch.chdir(finished.folder)
    log = tmp_path / "log"
    command = ("exp", "run", "--temp", "-n", "killed", "-S", "fit.num_epochs=500", "-f")
    running = finished.start_fork("dvc", *command, log=log)
    try:
        wait_until(lambda: "Running stage" in log.read_text(), log.read_text, running)
        (running_experiment,) = [each for each in check_experiments() if each.message.startswith("killed")]
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    standalone = Path(".dvc/tmp/exps/standalone")
    assert "killed" in finished.dvc("exp", "show", "--json").ok()

    def find_removable():  # true when the stage has detected that its DVC has ended
        return next(
            (each for each in check_experiments() if each.message.startswith("killed") and each.fix), None
        )

    stale = wait_until(find_removable)

    assert (running_experiment.level, running_experiment.fix) == (Level.OK, None)
    assert stale.level is Level.WARNING
    assert "killed is shown as running, but its process, pid" in stale.message
    assert f"rm -r {standalone.resolve()}/run/" in stale.remedy
    stale.fix()
    assert not list(standalone.glob("tmp*"))
    assert "killed" not in finished.dvc("exp", "show", "--json").ok()


def test_finished_experiment_in_a_copy_is_not_reported_as_killed(tmp_path, monkeypatch):
    """DVC removes the copy, and keeps the file about it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".dvc/tmp/exps/standalone"
    entry = folder / "run/8d60d70/8d60d70.run"
    entry.parent.mkdir(parents=True)
    entry.write_text(json.dumps({"name": "apart", "root_dir": str(folder / "tmpm79htuig"), "status": 6}))

    (found,) = check_experiments()

    assert found.level is Level.OK


def test_killed_worker_of_the_queue_is_reported_with_commands_that_remove_its_task(finished, monkeypatch):
    """The test writes the files that remain after a worker of DVC's queue is killed."""
    monkeypatch.chdir(finished.folder)
    ended = subprocess.Popen(["true"])
    ended.wait()
    task = Path(".dvc/tmp/exps/run/cb0d254")
    task.mkdir(parents=True)
    (task / "cb0d254.run").write_text(json.dumps({"name": "mine", "location": "dvc-task", "status": 2}))

    for pid, code in ((ended.pid, None), (os.getpid(), None), (ended.pid, 0)):
        (task / "cb0d254.json").write_text(json.dumps({"pid": pid, "returncode": code}))
        (found,) = check_experiments()
        found_state = (found.level, found.remedy)
        stale = (Level.WARNING, "dvc queue kill mine && dvc queue remove mine")
        assert found_state == (stale if (pid, code) == (ended.pid, None) else (Level.OK, "")), (pid, code)


@pytest.mark.long
def test_each_cause_is_reported_once_outside_a_project(tmp_path, open_project):
    done = open_project(tmp_path).call(
        "doctor", "--timeout", "600", "--json", GIT_CEILING_DIRECTORIES=str(tmp_path.parent)
    )

    assert done.code == 1
    problems = [each for each in json.loads(done.out)["data"] if each["level"] == Level.PROBLEM]
    assert sum("params.yaml cannot be read" in each["message"] for each in problems) == 1
    assert any("this folder is not a DVC project" in each["message"] for each in problems)


@pytest.mark.parametrize(("free", "level"), [(98, "ok"), (97, "warning"), (40, "warning"), (39, "problem")])
def test_free_space_is_compared_with_the_checkpoints_of_training_and_of_its_results(free, level):
    """A run needs four checkpoints in its store, three in artifacts, and three in DVC's cache."""
    assert check_free_space(free * 10**6, 9_800_000, 3).level == level


@pytest.mark.parametrize(
    ("status", "server", "level", "message"),
    [
        (200, version("prefect"), "ok", f"/api answers; its version is {version('prefect')}"),
        (200, "2.20.1", "warning", "its version is 2.20.1, that of the client 3"),
        (200, "1.0' && program '", "problem", "no Prefect API answers"),
        (200, {}, "problem", "no Prefect API answers"),
        (401, "", "problem", "denies access: HTTP 401"),
        (404, "", "problem", "answers HTTP 404"),
    ],
)
def test_answer_of_the_prefect_api_is_reported(monkeypatch, status, server, level, message):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/api/admin/version" else 500)
            self.end_headers()
            self.wfile.write(json.dumps(server).encode())

        def log_message(self, *arguments):
            pass

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{listening.server_port}/api")

        (found,) = check_prefect(LIMIT_SECONDS)
        listening.shutdown()

    assert found.level == level
    assert message in found.message


@pytest.mark.long
def test_prefect_server_is_reported_with_its_version(monkeypatch, server):
    monkeypatch.setenv("PREFECT_API_URL", server)

    (found,) = check_prefect(LIMIT_SECONDS)

    assert (found.level, found.message) == (
        Level.OK,
        f"{server} answers; its version is {version('prefect')}",
    )


def test_failing_or_hanging_check_does_not_hide_other_results():
    def raise_params_error():
        raise ParamsError("a mistake\n  and its place")

    def raise_unexpected_error():
        raise RuntimeError("unforeseen")

    hanging = threading.Event()
    checks = {
        "a": raise_params_error,
        "b": raise_unexpected_error,
        "c": hanging.wait,
        "d": lambda: [ok("d", "fine")],
    }

    def run_until_others_have_answered():
        found = drop_duplicates(run_checks(checks, 0.5))
        timed_out = [each.subject for each in found if each.message.startswith("no answer")]
        return found if timed_out == ["c"] else None

    found = wait_until(run_until_others_have_answered)
    hanging.set()

    assert [(each.subject, each.level, each.message) for each in found] == [
        ("a", Level.PROBLEM, "a mistake"),
        ("b", Level.WARNING, "check failed: RuntimeError: unforeseen"),
        ("c", Level.WARNING, "no answer within 0.5 seconds"),
        ("d", Level.OK, "fine"),
    ]


def test_private_name_that_changed_is_a_problem_with_the_supported_version(tmp_path, monkeypatch):
    (tmp_path / "changed_patches.py").write_text(
        "from stages.system.patches import Patch\n"
        'PATCHES = (Patch("json:dumps", "an example", "(value)", "1.0"),)\n'
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(environment, "PATCH_MODULES", ("changed_patches",))

    (found,) = environment.check_patches(LIMIT_SECONDS)

    assert found.level is Level.PROBLEM
    assert "json.dumps has the signature" in found.message
    assert found.remedy == "Install json 1.0"
