"""`learner sweep` runs each point once; the experiments, executors, signals and server are real."""

import json
import os
import re
import shlex
import shutil
import signal
import sys
import urllib.request
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from pages import page
from projects import Project
from waiting import LIMIT_SECONDS, wait_until

from pipeline.engine.project_copy import freeze
from pipeline.sweep.progress import collect_points
from stages.contracts.errors import StageError

RATE = "build_learner.optimizer.learning_rate"
GRID = f"{RATE}=0.001,1e30,0.002"
VALID_POINTS = ["learning_rate=0.001", "learning_rate=0.002"]
FAILING_POINT = "learning_rate=1e+30"
ON_TWO_GPUS = ("-j", "2", "-S", GRID)


@dataclass(frozen=True)
class SweepResult:
    """A project after a sweep."""

    project: Any
    sweep: Any
    outcome: Any
    unchanged: bool
    before_the_kill: tuple[str, ...] = ()
    """The experiments that were finished when the sweep was killed."""

    def plan(self, *more):
        """Return a map from name to state of the points of the same sweep, with the arguments *more*."""
        listed = self.project.call("sweep", "--dry-run", "-S", GRID, *more)
        assert listed.code == 0, listed.text
        return dict(line.split(": ", 1) for line in listed.out.splitlines())


def read_state(project):
    return project.ok("git", "status", "--porcelain=2", "--branch"), project.files(
        "params.yaml", "dvc.yaml", ".git/HEAD"
    )


@pytest.fixture(scope="module")
def project_on_gpus(tmp_path_factory, _finished):
    """Return a project with uncommitted changes, which prints the GPU of each training."""
    project = _finished.copied_to(tmp_path_factory.mktemp("sweep") / "project")
    project.edit(
        "dvc.yaml",
        "cmd: python -m pipeline stage fit",
        "cmd: echo GPU $CUDA_VISIBLE_DEVICES && python -m pipeline stage fit",
    )
    return project


@pytest.fixture(scope="module")
def sweep_result(tmp_path_factory, project_on_gpus, sweep_in):
    """Return the result of a sweep of three points on two GPUs, one of which fails."""
    project = project_on_gpus.copied_to(tmp_path_factory.mktemp("finished sweep") / "project")
    before = read_state(project)
    claims = str(tmp_path_factory.mktemp("claims"))
    outcome = project.call("sweep", *ON_TWO_GPUS, CUDA_VISIBLE_DEVICES="0,1", TMPDIR=claims)
    return SweepResult(project, sweep_in(project), outcome, unchanged=read_state(project) == before)


@pytest.fixture(scope="module")
def repeated_sweep(tmp_path_factory, project_on_gpus, sweep_in):
    """Return the result of the same sweep, which was killed after its first experiment, and run again."""
    project = project_on_gpus.copied_to(tmp_path_factory.mktemp("killed sweep") / "project")
    before = read_state(project)
    claims = str(tmp_path_factory.mktemp("claims"))
    sweep = sweep_in(project, *ON_TWO_GPUS, CUDA_VISIBLE_DEVICES="0,1", TMPDIR=claims)
    with sweep.start() as process:
        sweep.wait_for(process, experiments=1, training=0)
        process.kill()
        process.wait()
        finished = tuple(sweep.experiments())
    outcome = sweep.run()
    return SweepResult(project, sweep, outcome, read_state(project) == before, finished)


def test_failed_point_does_not_stop_others_and_is_reported_with_its_log(sweep_result):
    assert sweep_result.outcome.code == 1
    assert f"{FAILING_POINT}: failed" in sweep_result.outcome.out
    assert "error: 1 of 3 points failed" in sweep_result.outcome.err
    reason = re.search(
        rf"^{re.escape(FAILING_POINT)}: (.*)\n  log: (.*)$", sweep_result.outcome.err, re.MULTILINE
    )
    assert "NaN in loss" in reason[1]
    assert "NaN in loss" in (sweep_result.project.folder / reason[2]).read_text()
    assert "Traceback" not in sweep_result.outcome.text
    assert sweep_result.sweep.experiments() == VALID_POINTS


def test_each_point_runs_once(sweep_result):
    assert {name: sweep_result.sweep.attempts(name) for name in (*VALID_POINTS, FAILING_POINT)} == (
        dict.fromkeys((*VALID_POINTS, FAILING_POINT), 1)
    )
    assert_left_nothing(sweep_result)


@pytest.mark.long  # test_point_is_finished_if_an_experiment_has_its_params_and_code
def test_each_point_runs_once_if_the_sweep_is_killed(repeated_sweep):
    for name in repeated_sweep.before_the_kill:
        assert repeated_sweep.sweep.attempts(name) == 1
        assert f"{name}: done before" in repeated_sweep.outcome.out
    assert repeated_sweep.outcome.code == 1
    assert repeated_sweep.sweep.experiments() == VALID_POINTS
    assert repeated_sweep.unchanged
    assert_left_nothing(repeated_sweep)


def assert_left_nothing(result):
    """Check that each valid point has trained each epoch once, and that no process or copy of one remains."""
    assert [result.sweep.epochs(name) for name in VALID_POINTS] == [[1, 2]] * len(VALID_POINTS)
    assert not result.sweep.processes()
    folder = result.project.folder / ".runs/sweep"
    left = [path for path in folder.iterdir() if path.suffix in (".copy", ".sweep")]
    assert not left, [str(path) for place in left for path in place.rglob("*")]


def test_sweep_ends_with_a_table_of_its_experiments(sweep_result):
    table = sweep_result.outcome.out[sweep_result.outcome.out.index("\nrun ") :]

    assert [line.split()[0] for line in table.split("\n")[2:] if line] == VALID_POINTS[::-1]
    shown = json.loads(sweep_result.project.ok("dvc", "exp", "show", "--json"))
    assert sorted(each["name"] for rev in shown for each in rev["experiments"] or []) == VALID_POINTS
    assert "running" not in json.dumps(shown).lower()


@pytest.mark.parametrize(
    ("name", "content", "code", "message"),
    [
        ("params.yaml", "fit: [\n", 2, "params.yaml is not valid YAML: line 2, column 1"),
        ("dvc.yaml", "- fit\n", 2, "dvc.yaml must be a mapping of keys to values; found \"['fit']\""),
        ("dvc.yaml", "stages: {fit: {command: fit}}\n", 1, "DVC cannot read the stages of"),
        ("dvc.lock", "<<<<<<< HEAD\n", 1, "dvc.lock is not a dvc.lock: line 1 is a conflict marker of git"),
    ],
)
def test_unreadable_file_of_the_pipeline_is_refused_before_any_point(project, name, content, code, message):
    (project.folder / name).write_text(content)

    refused = project.call("sweep", "-S", "fit.seed=1,2")

    assert (refused.code, refused.out) == (code, "")
    assert message in refused.err
    assert "Traceback" not in refused.err


def test_unknown_metric_of_finished_points_is_reported_before_another_point_runs(sweep_result):
    attempts = sweep_result.sweep.attempts(FAILING_POINT)

    refused = sweep_result.project.call("sweep", "-S", GRID, "--metric", "valid/Los")

    assert refused.code == 2
    assert refused.err.startswith("error: no run has a metric 'valid/Los'. Did you mean 'valid/Loss'?")
    assert sweep_result.sweep.attempts(FAILING_POINT) == attempts


@pytest.mark.long
def test_unknown_metric_stops_the_sweep_after_its_first_experiment(project, sweep_in):
    """The message has the reasons of points that failed before, and the table has the default metric."""
    project.use_model("mlp")
    sweep = sweep_in(project, "-S", f"{RATE}=1e30,0.001,0.002", "--metric", "valid/Los")

    stopped = sweep.run()
    again = sweep.run()

    assert stopped.code == again.code == 2
    assert stopped.err.startswith("error: no run has a metric 'valid/Los'. Did you mean 'valid/Loss'?")
    assert f"\n1 of 2 points failed\n{FAILING_POINT}: " in stopped.err
    assert "NaN in loss" in stopped.err
    assert re.search(r"^run +valid/Accuracy .*\nlearning_rate=0.001 ", stopped.out, re.MULTILINE)
    assert sweep.experiments() == VALID_POINTS[:1]
    assert sweep.attempts(FAILING_POINT) == 1


def test_results_are_those_of_the_experiments_of_the_sweep_if_head_moves(finished, monkeypatch):
    """A branch may have the name of a point, and two points may have the same commit."""
    monkeypatch.chdir(finished.folder)
    base = freeze(finished.folder)
    for name in ("seed=1", "seed=2"):
        finished.ok("git", "update-ref", base.ref(name), base.head)
    finished.ok("git", "branch", "seed=1", "HEAD~1")
    finished.ok("git", "commit", "-q", "--allow-empty", "-m", "HEAD moves")

    runs = collect_points(base, ["seed=1", "seed=2"]).runs

    assert [(run.name, run.sha, run.epochs) for run in runs] == [
        ("seed=1", base.head, 2),
        ("seed=2", base.head, 2),
    ]
    with pytest.raises(StageError, match="experiment seed=3 of this sweep is missing"):
        collect_points(base, ["seed=3"])


def test_pipe_has_a_line_for_each_point(sweep_result):
    lines = sweep_result.outcome.out[: sweep_result.outcome.out.index("\nrun ")].splitlines()

    outcome = r"(done before|done(, about [\d.]+ (s|min \d+ s) left)?|failed)"
    assert lines[0] == "3 points, 2 at a time on threads"
    assert all(re.fullmatch(rf"\[\d/3\] learning_rate=\S+: {outcome}", line) for line in lines[1:]), lines
    assert len(lines) == 4


def test_quiet_sweep_writes_only_the_table_of_results(sweep_result):
    quiet = sweep_result.project.call("sweep", "-q", "-S", f"{RATE}=0.001,0.002")

    assert quiet.code == 0, quiet.text
    assert [line.split()[0] for line in quiet.out.splitlines() if line] == ["run", *VALID_POINTS[::-1]]


def test_sweep_does_not_change_files_of_the_user(sweep_result):
    assert sweep_result.unchanged
    listed = sweep_result.project.ok("git", "stash", "list")
    assert not listed
    commit = find_experiment(sweep_result, VALID_POINTS[0])
    assert "num_epochs: 2" in sweep_result.project.ok("git", "show", f"{commit}:params.yaml")


def find_experiment(sweep_result, name):
    return sweep_result.project.ok(
        "git", "for-each-ref", "--format=%(objectname)", f"refs/exps/**/{name}"
    ).strip()


def test_each_point_uses_one_gpu(sweep_result):
    devices = [
        each
        for log in sweep_result.sweep.logs().values()
        for each in re.findall(r"^GPU (.*)$", log, re.MULTILINE)
    ]

    assert len(devices) == 3
    assert set(devices) == {"0", "1"}


def test_point_is_finished_if_an_experiment_has_its_params_and_code(sweep_result):
    """A point with other params or code runs, with another name if an experiment has its name."""
    assert sweep_result.plan() == dict.fromkeys(VALID_POINTS, "done") | {FAILING_POINT: "to run"}
    others = sweep_result.plan("-S", "fit.num_epochs=3")
    assert set(others.values()) == {"to run"}
    assert all(
        re.match(r"learning_rate=0.00\d-[0-9a-f]{7}$", name) for name in others if name != FAILING_POINT
    )

    folder = sweep_result.project.folder
    try:
        (folder / "README.md").write_text("No stage depends on this file.")
        assert sweep_result.plan()[VALID_POINTS[0]] == "done"
        sweep_result.project.edit("stages/models/cnn.py", "import", "# edited\nimport")
        assert VALID_POINTS[0] not in sweep_result.plan()
        assert set(sweep_result.plan().values()) == {"to run"}
    finally:
        sweep_result.project.ok("git", "checkout", "README.md", "stages")
    sweep_result.project.edit("stages/fit.py", 'VERSION = "', 'VERSION = "1')
    try:
        assert set(sweep_result.plan().values()) == {"to run"}
    finally:
        sweep_result.project.ok("git", "checkout", "stages")


def test_mistake_in_all_points_is_reported_before_any_point_runs(sweep_result):
    refused = sweep_result.project.call("sweep", "-S", "fit.batch_sise=1,2")
    assert refused.code == 2
    assert "fit.batch_sise" in refused.err
    assert "Traceback" not in refused.err

    for engine, message in (
        (["--address", "tcp://127.0.0.1:1"], "--engine dask"),
        (["--engine", "ray"], "[ray]"),
    ):
        if "ray" in engine and find_spec("prefect_ray"):
            continue
        refused = sweep_result.project.call("sweep", "-S", "fit.batch_size=1,2", *engine)
        assert (refused.code, message in refused.err) == (2, True)


def test_stale_git_index_is_refreshed_and_a_failure_of_git_is_reported(project):
    point = ("sweep", "--dry-run", "-S", f"{RATE}=0.001,0.002")
    for path in (project.folder / "stages").glob("*.py"):
        path.touch()

    done = project.call(*point)

    assert done.code == 0, done.text
    assert done.out.splitlines() == ["learning_rate=0.001: to run", "learning_rate=0.002: to run"]
    project.edit("README.md", "DVC", "D V C")
    (project.folder / ".git/index.lock").touch()
    refused = project.call(*point)
    assert (refused.code, "Traceback" in refused.err) == (1, False), refused.text
    assert ".git/index.lock exists: another git process runs" in refused.err


def test_params_that_dvc_cannot_write_back_are_rejected(project):
    """DVC drops the quotes of a string with a colon in a mapping in braces."""
    project.edit(
        "params.yaml",
        "\n    kind: cnn\n    hidden_size: 32\n    dropout: 0.5",
        ' {kind: "stages.models:Cnn"}',
    )

    rejected = project.call("sweep", "--dry-run", "-S", "fit.batch_size=32,64")

    assert rejected.code == 2
    assert "DVC cannot write params.yaml back" in rejected.text
    assert "Write it in block style" in rejected.text
    assert "your code" not in rejected.text


def test_params_may_be_a_link_within_the_project(project):
    base, link = project.folder / "base.yaml", project.folder / "params.yaml"
    link.rename(base)
    for target, code, message in (("base.yaml", 0, ""), ("../base.yaml", 2, "or it is a link out of the")):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        project.ok("git", "add", "-A")
        shutil.copy(base, project.folder.parent)

        planned = project.call("sweep", "--dry-run", "-S", "fit.seed=1,2")

        assert (planned.code, message in planned.err) == (code, True), planned.text


def test_data_outside_of_the_repository_is_reported_by_check_and_before_any_point(project):
    data = project.folder.parent / "data.npz"
    np.savez(data, inputs=np.zeros((20, 4), "float32"), targets=np.arange(20) % 2)
    project.edit("params.yaml", "    kind: digits\n    path: null", "    kind: npz\n    path: ../data.npz")
    project.edit(
        "dvc.yaml", "      - stages/data/sources\n", "      - stages/data/sources\n      - ../data.npz\n"
    )
    message = f"load_data.source.path: ../data.npz is outside of the repository, .* Write {data}, or"

    checked = project.call("check")
    planned = project.call("sweep", "--dry-run", "-S", "fit.seed=1,2")

    assert re.search(message, checked.ok())
    assert (planned.code, len(re.findall(message, planned.err))) == (2, 1)
    project.edit("params.yaml", "../data.npz", str(data))
    of_deps = project.call("sweep", "--dry-run", "-S", "fit.seed=1,2")
    assert of_deps.code == 2
    assert "dvc.yaml: load-data: ../data.npz is outside of the repository" in of_deps.err
    project.edit("dvc.yaml", "../data.npz", str(data))
    assert project.call("sweep", "--dry-run", "-S", "fit.seed=1,2").code == 0


def test_data_that_git_does_not_track_is_reported_before_any_point(project):
    """A point runs in a copy, which has the data only if git tracks it, or the file of DVC that does."""
    data = project.folder / "data.npz"
    np.savez(data, inputs=np.zeros((20, 4), "float32"), targets=np.arange(20) % 2)
    project.edit("params.yaml", "    kind: digits\n    path: null", "    kind: npz\n    path: data.npz")
    project.edit("dvc.yaml", "- stages/data/sources\n", "- stages/data/sources\n      - data.npz\n")

    def try_out(name):
        message = f"git does not track {name}, from which load-data has a dependency, and .* `git add {name}`"
        planned = project.call("sweep", "--dry-run", "-S", "fit.seed=1,2")
        return planned.code, bool(re.search(message, planned.err))

    assert try_out("data.npz") == (2, True)
    (project.folder / ".gitignore").open("a").write("/data.npz\n")
    (project.folder / "data.npz.dvc").write_text("outs:\n- path: data.npz\n")
    assert try_out("data.npz.dvc") == (2, True)
    project.ok("git", "add", "data.npz.dvc")
    assert try_out("data.npz.dvc") == (0, False)


def test_dry_run_lists_each_invalid_point_and_exits_with_2(project):
    grid = ("-S", "fit.batch_size=32,0", "-S", "save_model.recorder=bin,default")
    some = project.call("sweep", "--dry-run", *grid)

    assert some.code == 2
    assert some.out.splitlines().count("batch_size=32,recorder=default: to run") == 1
    assert some.out.count(": not valid") == 3
    assert "3 of 4 points cannot run:" in some.err
    assert "batch_size=0,recorder=default: params.yaml is not valid:" in some.err
    assert "fit.batch_size: must be an integer from 1 to 1000000000; found 0" in some.err
    assert "batch_size=32,recorder=bin: params.yaml is not valid:" in some.err

    none = project.call("sweep", "--dry-run", "-S", "fit.batch_size=true,0")
    assert none.code == 2
    assert "the first is batch_size=True: params.yaml is not valid:" in none.err


def test_unreachable_api_is_an_error(sweep_result):
    refused = sweep_result.project.call(
        "sweep", "-S", "fit.batch_size=8,9", PREFECT_API_URL="http://127.0.0.1:9/api"
    )

    assert refused.code == 1
    assert "the Prefect API at http://127.0.0.1:9/api is unreachable" in refused.err
    assert "Traceback" not in refused.text
    assert sweep_result.sweep.experiments() == VALID_POINTS


@pytest.mark.long
def test_interrupted_points_are_saved_and_resumed_as_a_flow_on_dask(project, sweep_in, server):
    """Points that differ only in their number of epochs share a run store: one resumes the other."""
    project.edit("params.yaml", "num_epochs: 2", "num_epochs: 9")
    command = ["-j", "2", "--engine", "dask", "-S", "fit.num_epochs=9,10"]
    sweep = sweep_in(project, *command)

    with sweep.start() as process:
        sweep.wait_for(process, experiments=0, training=1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the workers too
        assert process.wait(LIMIT_SECONDS) == 130
        out = (project.folder.parent / "sweep.out").read_text()
    assert "0 of 2 points are done. Run the same command again to resume" in out
    assert "Traceback" not in out
    wait_until(lambda: not sweep.processes())

    outcome = sweep_in(project, *command, PREFECT_API_URL=server).run()

    assert outcome.code == 0, outcome.text
    assert sweep.epochs("num_epochs=9") == list(range(1, 10))
    assert sweep.epochs("num_epochs=10") == [10]
    runs = fetch_all(server, "task_runs")
    assert {each["name"] for each in runs if each["state_name"] == "Completed"} >= set(sweep.experiments())
    assert {"learner-sweep"} == {each["name"] for each in fetch_all(server, "flows")}


@pytest.mark.long
@pytest.mark.skipif(not find_spec("prefect_ray"), reason="Ray is not installed")
def test_interrupted_point_is_saved_and_resumed_on_ray(project, sweep_in):
    project.edit("params.yaml", "num_epochs: 2", "num_epochs: 30")
    sweep = sweep_in(project, "--engine", "ray", "-S", f"{RATE}=choice(0.002)")

    with sweep.start() as process:
        sweep.wait_for(process, experiments=0, training=1)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(LIMIT_SECONDS) == 130
        out = (project.folder.parent / "sweep.out").read_text()
    assert "0 of 1 points are done. Run the same command again to resume" in out
    assert "Traceback" not in out

    outcome = sweep.run()

    assert outcome.code == 0, outcome.text
    assert sweep.epochs(VALID_POINTS[1]) == list(range(1, 31))


def fetch_all(server, what):
    """Return all *what* of the Prefect server, for example ``flows``."""
    request = urllib.request.Request(  # noqa: S310  loopback
        f"{server}/{what}/filter", data=b"{}", headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310  loopback
        return json.load(answer)


def test_commands_of_the_readme_have_the_documented_numbers_of_points(project):
    commands = [shlex.split(each)[1:] for each in page("pipeline/sweep/README.md").commands()]

    counts = [len(project.call(*each, "--dry-run").out.splitlines()) for each in commands]

    assert counts == [8, 4, 2, 20, 5]


def test_dvc_process_exits_if_its_parent_process_does_not_exist(project):
    command = [sys.executable, "-m", "pipeline.engine.dvc_process", "1"]

    orphan = project.run(*command, "exp", "run", "--temp", "--name", "orphan")

    assert orphan.code == -signal.SIGTERM


@pytest.mark.long  # test_copy_made_in_a_git_hook_changes_neither_head_nor_index does it without a sweep
def test_sweep_in_a_post_commit_hook_changes_neither_head_nor_index(project, tmp_path):
    """In a worktree, git passes the paths of its repository and index to a hook."""
    hook = project.folder / ".git/hooks/post-commit"
    hook.write_text(f"#!/bin/sh\n{sys.executable} -m pipeline sweep -S fit.seed=1,2 > ../sweep.out 2>&1\n")
    hook.chmod(0o755)
    project.ok("git", "worktree", "add", "-q", "-b", "other", "../worktree")
    worktree = Project(tmp_path / "worktree", project.environment["PREFECT_HOME"])
    worktree.edit("README.md", "DVC", "D V C")

    worktree.ok("git", "commit", "-qam", "Edit the page")

    output = (tmp_path / "sweep.out").read_text()
    assert re.search(r"^seed=2 ", output, re.MULTILINE), output
    assert worktree.ok("git", "symbolic-ref", "HEAD") == "refs/heads/other\n"
    assert not worktree.ok("git", "status", "--porcelain", "--untracked-files=no")
    experiments = worktree.ok("git", "for-each-ref", "--format=%(refname)", "refs/exps")
    assert sorted(ref.rpartition("/")[2] for ref in experiments.split()) == ["seed=1", "seed=2"]
