"""`learner sweep`, with real experiments, executors, signals and a real server."""

import json
import re
import shlex
import signal
import sys
import urllib.request
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
from pages import page
from waiting import LIMIT_SECONDS

RATE = "build_learner.optimizer.learning_rate"


GRID = f"{RATE}=0.001,1e30,0.002"
GOOD = ["learning_rate=0.001", "learning_rate=0.002"]
BAD = "learning_rate=1e+30"


@dataclass(frozen=True)
class Swept:
    """A project after a sweep that was killed and started again."""

    project: Any
    sweep: Any
    before: list[str]
    outcome: Any
    unchanged: bool

    def plan(self, *more):
        """Return name to state of the points of the same sweep, with the arguments *more*."""
        done = self.project.learner("sweep", "--dry-run", "-S", GRID, *more)
        assert done.code == 0, done.text
        return dict(line.split(": ", 1) for line in done.out.splitlines())


def state(project):
    return project.ok("git", "status", "--porcelain=2", "--branch"), project.files(
        "params.yaml", "dvc.yaml", ".git/HEAD"
    )


@pytest.fixture(scope="module")
def swept(tmp_path_factory, checked_out, sweep_in):
    """Sweep three points, one of which fails, on two GPUs, in a project with uncommitted changes."""
    project = checked_out(tmp_path_factory.mktemp("swept") / "project")
    project.edit("params.yaml", "num_epochs: 20", "num_epochs: 2")
    project.edit(
        "dvc.yaml",
        "cmd: python -m pipeline stage fit",
        "cmd: echo GPU $CUDA_VISIBLE_DEVICES && python -m pipeline stage fit",
    )
    before = state(project)
    claims = str(tmp_path_factory.mktemp("claims"))
    sweep = sweep_in(project, "-j", "2", "-S", GRID, CUDA_VISIBLE_DEVICES="0,1", TMPDIR=claims)
    with sweep.started() as process:
        sweep.until(process, experiments=1, training=1)
        process.kill()
        process.wait()
        done = sweep.experiments()
    outcome = sweep.run()
    return Swept(project, sweep, done, outcome, unchanged=state(project) == before)


def test_failed_point_stops_no_other_and_is_reported_with_its_log(swept):
    assert swept.outcome.code == 1
    assert f"{BAD}: failed" in swept.outcome.out
    assert "error: 1 of 3 points failed" in swept.outcome.err
    reason = re.search(rf"^{re.escape(BAD)}: (.*)\n  log: (.*)$", swept.outcome.err, re.MULTILINE)
    assert "NaN in loss" in reason[1]
    assert "NaN in loss" in (swept.project.folder / reason[2]).read_text()
    assert "Traceback" not in swept.outcome.text
    assert swept.sweep.experiments() == GOOD


def test_each_point_runs_once_if_the_sweep_is_killed(swept):
    for name in GOOD:
        assert swept.sweep.epochs(name) == [1, 2]
        assert swept.sweep.attempts(name) == 1 or name not in swept.before
    assert all(f"{name}: done before" in swept.outcome.out for name in swept.before)
    assert not swept.sweep.processes()
    left = [path.name for path in (swept.project.folder / ".runs/sweep").iterdir()]
    assert not [name for name in left if name.endswith((".copy", ".sweep"))]


def test_sweep_ends_with_a_table_of_its_experiments(swept):
    table = swept.outcome.out[swept.outcome.out.index("\nrun ") :]

    assert [line.split()[0] for line in table.split("\n")[2:] if line] == GOOD
    shown = json.loads(swept.project.ok("dvc", "exp", "show", "--json"))
    assert sorted(each["name"] for rev in shown for each in rev["experiments"] or []) == GOOD
    assert "running" not in json.dumps(shown).lower()


def test_files_of_the_user_do_not_change(swept):
    assert swept.unchanged
    listed = swept.project.ok("git", "stash", "list")
    assert not listed
    assert "num_epochs: 2" in swept.project.ok("git", "show", f"{experiment(swept, GOOD[0])}:params.yaml")


def experiment(swept, name):
    return swept.project.ok("git", "for-each-ref", "--format=%(objectname)", f"refs/exps/**/{name}").strip()


def test_each_point_uses_one_gpu(swept):
    seen = [
        each for log in swept.sweep.logs().values() for each in re.findall(r"^GPU (.*)$", log, re.MULTILINE)
    ]

    assert len(seen) >= 4  # one point failed twice, one was killed
    assert set(seen) == {"0", "1"}


def test_point_is_done_if_git_has_its_params_and_code(swept):
    """A point with other params or code runs, under another name if its own is taken."""
    assert swept.plan() == dict.fromkeys(GOOD, "done") | {BAD: "to run"}
    others = swept.plan("-S", "fit.num_epochs=3")
    assert set(others.values()) == {"to run"}
    assert all(re.match(r"learning_rate=0.00\d-[0-9a-f]{7}$", name) for name in others if name != BAD)

    folder = swept.project.folder
    try:
        (folder / "README.md").write_text("No stage depends on it.")
        assert swept.plan()[GOOD[0]] == "done"
        swept.project.edit("stages/models/cnn.py", "import", "# edited\nimport")
        assert GOOD[0] not in swept.plan()
        assert set(swept.plan().values()) == {"to run"}
    finally:
        swept.project.ok("git", "checkout", "README.md", "stages")
    swept.project.edit("stages/fit.py", 'VERSION = "', 'VERSION = "1')
    try:
        assert set(swept.plan().values()) == {"to run"}
    finally:
        swept.project.ok("git", "checkout", "stages")


def test_mistake_in_all_points_is_reported_before_any_runs(swept):
    refused = swept.project.learner("sweep", "-S", "fit.batch_sise=1,2")
    assert refused.code == 2
    assert "fit.batch_sise" in refused.err
    assert "Traceback" not in refused.err

    for engine, message in (
        (["--address", "tcp://127.0.0.1:1"], "--engine dask"),
        (["--engine", "ray"], "[ray]"),
    ):
        if "ray" in engine and find_spec("prefect_ray"):
            continue
        refused = swept.project.learner("sweep", "-S", "fit.batch_size=1,2", *engine)
        assert (refused.code, message in refused.err) == (2, True)


def test_stale_git_index_is_refreshed_and_a_failure_of_git_is_reported(project):
    point = ("sweep", "--dry-run", "-S", f"{RATE}=0.001,0.002")
    for path in (project.folder / "stages").glob("*.py"):
        path.touch()

    done = project.learner(*point)

    assert done.code == 0, done.text
    assert done.out.splitlines() == ["learning_rate=0.001: to run", "learning_rate=0.002: to run"]
    project.edit("README.md", "DVC", "D V C")
    (project.folder / ".git/index.lock").touch()
    refused = project.learner(*point)
    assert (refused.code, "Traceback" in refused.err) == (1, False), refused.text
    assert ".git/index.lock exists: another git process runs" in refused.err


def test_dry_run_lists_each_invalid_point_and_exits_with_2(project):
    grid = ("-S", "fit.batch_size=32,0", "-S", "save_model.recorder=bin,default")
    some = project.learner("sweep", "--dry-run", *grid)

    assert some.code == 2
    assert some.out.splitlines().count("batch_size=32,recorder=default: to run") == 1
    assert some.out.count(": not valid") == 3
    assert "3 of 4 points cannot run:" in some.err
    assert "batch_size=0,recorder=default: params.yaml is not valid:" in some.err
    assert "fit.batch_size: must be an integer from 1 to 1000000000; found 0" in some.err
    assert "batch_size=32,recorder=bin: params.yaml is not valid:" in some.err

    none = project.learner("sweep", "--dry-run", "-S", "fit.batch_size=true,0")
    assert none.code == 2
    assert "the first is batch_size=True: params.yaml is not valid:" in none.err


def test_unreachable_api_is_an_error(swept):
    refused = swept.project.learner(
        "sweep", "-S", "fit.batch_size=8,9", PREFECT_API_URL="http://127.0.0.1:9/api"
    )

    assert refused.code == 1
    assert "the Prefect API at http://127.0.0.1:9/api is unreachable" in refused.err
    assert "Traceback" not in refused.text
    assert swept.sweep.experiments() == GOOD


@pytest.mark.long
def test_points_save_on_ctrl_c_and_the_same_command_resumes_them_as_a_flow_on_dask(project, sweep_in, server):
    """Points that differ only in their number of epochs share a run store: one resumes the other."""
    project.edit("params.yaml", "num_epochs: 2", "num_epochs: 9")
    command = ["-j", "2", "--engine", "dask", "-S", "fit.num_epochs=9,10"]
    sweep = sweep_in(project, *command)

    with sweep.started() as process:
        sweep.until(process, experiments=0, training=1)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_SECONDS) == 130
        out = (project.folder.parent / "sweep.out").read_text()
    assert "0 of 2 points are done. Run the same command again to resume" in out
    assert "Traceback" not in out
    assert not sweep.processes()

    outcome = sweep_in(project, *command, PREFECT_API_URL=server).run()

    assert outcome.code == 0, outcome.text
    assert sweep.epochs("num_epochs=9") == list(range(1, 10))
    assert sweep.epochs("num_epochs=10") == [10]
    runs = read_all(server, "task_runs")
    assert {each["name"] for each in runs if each["state_name"] == "Completed"} >= set(sweep.experiments())
    assert {"learner-sweep"} == {each["name"] for each in read_all(server, "flows")}


def read_all(server, what):
    """Return all *what* of the Prefect server, for example ``flows``."""
    request = urllib.request.Request(  # noqa: S310  loopback
        f"{server}/{what}/filter", data=b"{}", headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310  loopback
        return json.load(answer)


def test_commands_of_the_page_have_the_described_numbers_of_points(project):
    commands = [shlex.split(each)[1:] for each in page("pipeline/sweep/README.md").commands()]

    counts = [len(project.learner(*each, "--dry-run").out.splitlines()) for each in commands]

    assert counts == [8, 4, 2]


def test_dvc_process_exits_if_its_parent_does_not_exist(project):
    command = [
        sys.executable,
        "-m",
        "pipeline.engine.dvc_process",
        "1",
        "exp",
        "run",
        "--temp",
        "--name",
        "orphan",
    ]

    ended = project.run(*command, "exp", "run", "--temp", "--name", "orphan")

    assert ended.code == -signal.SIGTERM
