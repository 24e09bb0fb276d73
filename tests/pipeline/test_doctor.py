"""`learner doctor`: what it finds, what it says to do, and what it removes."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from waiting import wait_until

from pipeline.doctor.diagnostics import Level, drop_duplicates, ok, run_checks
from pipeline.doctor.environment import check_free_space, check_prefect, check_requirement
from pipeline.doctor.stale_files import check_experiments, check_locks
from stages.contracts.errors import ParamsError


def examined(project, *arguments, **environment):
    """What the doctor found, by what it is about and how bad it is, and how it ended."""
    done = project.learner("doctor", "--json", *arguments, **environment)
    assert done.out, done.err
    found = {}
    for each in json.loads(done.out):
        found.setdefault((each["about"], each["level"]), []).append((each["what"], each["cure"]))
    return found, done.code


def said(found, about, level):
    """All that was found about *about*, in one text."""
    return "\n".join(f"{what}: {cure}" for what, cure in found.get((about, level), []))


@pytest.fixture
def silent():
    """The port of a server that takes connections and says nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_where_all_is_well_it_says_so_and_ends_with_0(finished, tmp_path, server):
    (tmp_path / "store").mkdir()
    finished.ok("dvc", "remote", "add", "-d", "store", str(tmp_path / "store"))

    done = finished.learner("doctor", PREFECT_API_URL=server)

    assert done.code == 0, done.text
    levels = {line.split()[1]: line.split()[0] for line in done.out.splitlines() if line[0] != " "}
    abouts = "packages extras params devices disk prefect remote untracked git locks experiments runs"
    assert levels == dict.fromkeys(abouts.split(), "ok")
    assert re.search(r"prefect  +http://127.0.0.1:\d+/api answers; it is 3\.", done.out)
    assert re.search(r"a checkpoint takes [\d.]+ MB: a run with 3 and one more", done.out)
    assert "devices      " in done.out
    assert "cpu" in done.out
    assert "1 finished" in done.out


def test_what_is_wrong_is_said_with_what_mends_it_and_ends_with_1(finished, tmp_path, silent):
    pytest.importorskip("dvc_s3", reason="S3 needs the extra s3")
    (finished.folder / "nets.py").write_text("from stages.models import Mlp as Net\n")
    (finished.folder / "mine.npz").touch()
    (finished.folder / "notes").touch()
    with (finished.folder / ".git/info/exclude").open("a") as ignored:
        ignored.write("mine.npz\n")
    finished.edit("params.yaml", "kind: cnn\n    dropout: 0.5", 'kind: "nets:Net"')
    finished.edit("params.yaml", "kind: digits\n    path: null", "kind: npz\n    path: mine.npz")
    finished.edit("params.yaml", "device: auto", "device: cuda:77")
    finished.ok("dvc", "remote", "add", "far", "s3://bucket/store")
    finished.ok("dvc", "remote", "modify", "far", "endpointurl", f"http://127.0.0.1:{silent}")
    finished.ok("dvc", "remote", "add", "disk", str(tmp_path / "unmounted/store"))
    access = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "NO_PROXY": "127.0.0.1"}

    found, code = examined(finished, PREFECT_API_URL=f"http://127.0.0.1:{silent}/api", **access)

    assert code == 1
    assert "add to deps of fit in dvc.yaml:\n      - nets.py" in said(found, "deps", "problem")
    assert "fit.device is cuda:77; here: " in said(found, "devices", "problem")
    untracked = said(found, "untracked", "problem")
    assert "nets.py is used, and neither git nor DVC has it" in untracked
    assert "git add mine.npz; or, for data, dvc add mine.npz" in untracked
    assert "not in `dvc exp run --temp`: notes:" in said(found, "untracked", "warning")
    assert "did not answer in 8 seconds" in said(found, "remote far", "problem")
    nearest = f"there is {tmp_path}, and nothing in it of that name"
    assert nearest in said(found, "remote disk", "warning")
    assert "none of far, disk is the default: dvc remote default far" in said(found, "remotes", "warning")
    assert "no Prefect API answers there: timed out" in said(found, "prefect", "problem")


def test_a_broken_lock_is_removed_and_one_of_the_living_stays(finished):
    """DVC writes its list in place: a kill leaves it empty, and then every command of DVC's fails."""
    lock, record = finished.folder / ".dvc/tmp/rwlock", finished.folder / "dvc.lock"
    lock.write_text("")
    assert "structure is corrupted" in finished.run("dvc", "repro", "-f").text
    recorded = record.read_bytes()
    record.write_text("")

    told = finished.learner("doctor")
    mended = finished.learner("doctor", "--fix")

    assert told.code == 1
    assert re.search(r"problem  locks +\S+rwlock is not whole.*\n.*rm \S+rwlock", told.out)
    assert re.search(r"problem  locks +dvc.lock is not whole.*\n.*git checkout dvc.lock", told.out)
    assert mended.code == 0, mended.out
    assert mended.out.startswith("mended: ")
    assert "ok       locks" in mended.out
    assert not lock.exists()
    assert record.read_bytes() == recorded


def test_of_a_lock_only_what_the_dead_have_is_taken_out(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)
    lock = finished.folder / ".dvc/tmp/rwlock"
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead, living = {"pid": ended.pid, "cmd": "dvc repro"}, {"pid": os.getpid(), "cmd": "dvc commit"}
    lock.write_text(json.dumps({"write": {"a": dead, "b": living}, "read": {"c": [dead, living]}}))

    found = list(check_locks())

    assert [(each.level, each.fix is None) for each in found] == [("ok", True), ("warning", False)]
    assert found[0].message == f"pid {os.getpid()} works in this project now: dvc commit"
    assert f"still names pid {ended.pid}, which is gone" in found[1].message
    found[1].fix()
    assert json.loads(lock.read_text()) == {"write": {"b": living}, "read": {"c": [living]}}


def test_a_lock_of_a_number_that_another_process_has_now_is_told_and_cleared(finished, monkeypatch):
    """DVC takes any process of that number for the one that it noted, and never goes on."""
    monkeypatch.chdir(finished.folder)
    lock = finished.folder / ".dvc/tmp/rwlock"
    lock.write_text(json.dumps({"write": {"a": {"pid": os.getpid(), "cmd": "dvc repro"}}, "read": {}}))
    os.utime(lock, (1, 1))

    (found,) = check_locks()

    assert found.level is Level.PROBLEM
    assert "which is another process now: DVC waits for it for ever" in found.message
    found.fix()
    assert [each.message for each in check_locks()] == ["nobody holds one"]


def test_a_list_that_a_dvc_writes_at_this_moment_is_left_alone(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)
    (finished.folder / ".dvc/tmp/rwlock").write_text("")
    with (finished.folder / ".dvc/tmp/rwlock.lock").open("a") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)

        (found,) = check_locks()

    assert (found.level, found.fix) == (Level.OK, None)
    assert "a DVC writes" in found.message


def test_the_ghost_of_a_killed_experiment_is_removed_and_a_running_one_is_not(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)
    command = ["dvc", "exp", "run", "--temp", "-n", "ghost", "-S", "fit.num_epochs=500", "-f"]
    running = subprocess.Popen(
        command,
        cwd=finished.folder,
        env=finished.environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert any("Running stage" in line for line in running.stdout)
        (alive,) = [each for each in check_experiments() if each.message.startswith("ghost")]
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        running.stdout.close()
    standalone = Path(".dvc/tmp/exps/standalone")
    assert "ghost" in finished.ok("dvc", "exp", "show", "--json")

    def removable():  # once the stage has seen that its DVC is gone
        return next(
            (each for each in check_experiments() if each.message.startswith("ghost") and each.fix), None
        )

    dead = wait_until(removable)

    assert (alive.level, alive.fix) == (Level.OK, None)
    assert dead.level is Level.WARNING
    assert "ghost is shown as running, and pid" in dead.message
    assert f"rm -r {standalone.resolve()}/run/" in dead.remedy
    mended = finished.learner("doctor", "--fix")
    assert (mended.code, mended.out.startswith("mended: ghost is shown")) == (0, True), mended.text
    assert not list(standalone.glob("tmp*"))
    assert "ghost" not in finished.ok("dvc", "exp", "show", "--json")


def test_the_ghost_of_a_killed_worker_is_told_with_the_commands_that_clear_it(finished, monkeypatch):
    """The files are those that a worker of DVC's queue leaves when it is killed."""
    monkeypatch.chdir(finished.folder)
    ended = subprocess.Popen(["true"])
    ended.wait()
    task = Path(".dvc/tmp/exps/run/cb0d254")
    task.mkdir(parents=True)
    (task / "cb0d254.run").write_text(json.dumps({"name": "mine", "location": "dvc-task", "status": 2}))

    for pid, code in ((ended.pid, None), (os.getpid(), None), (ended.pid, 0)):
        (task / "cb0d254.json").write_text(json.dumps({"pid": pid, "returncode": code}))
        (found,) = check_experiments()
        told = (found.level, found.remedy)
        dead = (Level.WARNING, "dvc queue kill mine && dvc queue remove mine")
        assert told == (dead if (pid, code) == (ended.pid, None) else (Level.OK, "")), (pid, code)


def test_outside_of_a_project_it_says_what_is_missing_once(tmp_path, project):
    away = type(project)(tmp_path, project.environment["PREFECT_HOME"])
    away.environment |= {"PYTHONPATH": str(project.folder), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}

    found, code = examined(away)

    assert code == 1
    problems = [what for (_, level), each in found.items() if level == Level.PROBLEM for what, _ in each]
    assert sum("params.yaml cannot be read" in each for each in problems) == 1
    assert any("DVC does not know this folder" in each for each in problems)


@pytest.mark.parametrize(("free", "level"), [(98, "ok"), (97, "warning"), (40, "warning"), (39, "problem")])
def test_the_room_is_that_of_a_run_at_work_and_of_what_it_publishes(free, level):
    """Of three that stay, and one more; then three in artifacts, and three in DVC's cache."""
    assert check_free_space(free * 10**6, 9_800_000, 3).level == level


@pytest.mark.parametrize(
    ("need", "said"),
    [
        ("typer>=0.1", []),
        ("typer<0.1", [r"typer is \d\S+, and <0.1 is needed: pip install 'typer<0.1'"]),
        ("no-such-package>=2", ["no-such-package is not installed: pip install 'no-such-package>=2'"]),
    ],
)
def test_what_is_missing_or_of_a_wrong_version_is_told_with_what_installs_it(need, said):
    found = [f"{each.message}: {each.remedy}" for each in check_requirement(Requirement(need))]

    assert len(found) == len(said)
    assert all(map(re.fullmatch, said, found))


@pytest.mark.parametrize(
    ("status", "level", "words"),
    [
        (200, "warning", "it is 2.20.1, and 3"),
        (401, "problem", "does not let you in: HTTP 401"),
        (404, "problem", "answers HTTP 404"),
    ],
)
def test_an_api_of_another_version_or_one_that_refuses_is_told(monkeypatch, status, level, words):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/api/admin/version" else 500)
            self.end_headers()
            self.wfile.write(b'"2.20.1"')

        def log_message(self, *arguments):
            pass

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server.server_port}/api")

        (found,) = check_prefect()
        server.shutdown()

    assert found.level == level
    assert words in found.message


def test_a_check_that_fails_or_hangs_hides_no_other():
    def wrong():
        raise ParamsError("a mistake\n  and where")

    def broken():
        raise RuntimeError("unforeseen")

    checks = {"a": wrong, "b": broken, "c": threading.Event().wait, "d": lambda: [ok("d", "fine")]}

    found = drop_duplicates(run_checks(checks, 2.0))

    assert [(each.subject, each.level, each.message) for each in found] == [
        ("a", Level.PROBLEM, "a mistake"),
        ("b", Level.WARNING, "not looked at: RuntimeError: unforeseen"),
        ("c", Level.WARNING, "no answer within 2 seconds"),
        ("d", Level.OK, "fine"),
    ]
