"""A point runs in a fork of a server, and leaves what `dvc exp run` in processes of its own leaves."""

import os
import shutil
import signal
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from waiting import LIMIT_SECONDS, wait_until

from pipeline.engine.project_copy import freeze, temporary_copy
from pipeline.sweep.executors import run_jobs
from pipeline.sweep.job import Job, _reason, build_request
from pipeline.sweep.plan import PlannedPoint, Point, expand, plan_points
from pipeline.sweep.point_process import POINT_SERVERS
from stages.contracts.errors import RunInUseError
from stages.runs.layout import SWEEP_FOLDER
from stages.system.file_lock import hold_lock
from stages.system.processes import parent_of, pids_below

RATE = "build_learner.optimizer.learning_rate"
WIDTH = "build_learner.model.width"
NET = """
import os, signal, subprocess
from torch import nn
from stages.models import ClassificationStep

calls = []


class Net(ClassificationStep, nn.Sequential):
    def __init__(self, input_shape, num_classes, width=8):
        calls.append(width)
        if width == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        if width == 17:
            git = ["git", "-C", os.getcwd().partition("/.runs/")[0]]
            head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
            subprocess.run([*git, "update-ref", f"refs/exps/{head[:2]}/{head[2:]}/width=17", head])
        wide = width * len(set(calls))
        super().__init__(nn.Flatten(), nn.Linear(64, wide), nn.Linear(wide, num_classes))
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory, checked_out, sweep_in):
    """Return a project, a copy of it, and the outcome of a sweep in the project of three widths.

    The model counts widths, and kills its process if one is 13. Git tracks the metrics and plots.
    """
    folder = tmp_path_factory.mktemp("points")
    project = checked_out(folder / "project")
    (project.folder / "net.py").write_text(NET)
    project.edit("params.yaml", "num_epochs: 20", "num_epochs: 2")
    project.edit("params.yaml", "kind: cnn\n    dropout: 0.5", 'kind: "net:Net"\n    width: 8')
    project.add_deps()
    track_metrics(project)
    project.ok("git", "commit", "-qm", "A model")
    copy = project.copied_to(folder / "alone")
    return project, copy, sweep_in(project, "-S", f"{WIDTH}=8,13,16").run()


def track_metrics(project):
    """Have git track the metrics and plots of *project* instead of DVC."""
    project.edit(
        "dvc.yaml", "      - ${paths.metrics}\n", "      - ${paths.metrics}:\n          cache: false\n"
    )
    project.edit("dvc.yaml", "metrics: artifacts/metrics.json", "metrics: metrics.json")
    project.ok("git", "add", "-A")


def read_tree(project, name):
    """Return the files of the experiment *name* with their hashes, its dvc.lock and its message."""
    [ref] = project.ok("git", "for-each-ref", "--format=%(refname)", f"refs/exps/**/{name}").split()
    assert project.ok("git", "rev-parse", f"{ref}^") == project.ok("git", "rev-parse", "HEAD")
    files = project.ok("git", "ls-tree", "-r", ref).splitlines()
    return (
        files,
        project.ok("git", "show", f"{ref}:dvc.lock"),
        project.ok("git", "log", "-1", "--format=%B", ref),
    )


@pytest.mark.long  # test_sweep.py has points of a server
def test_second_point_of_a_process_equals_the_experiment_of_dvc_exp_run(swept):
    """The tree, dvc.lock and the message are equal.

    Modules of the user have no state of an earlier point, and neither has the random state.
    """
    project, alone, _ = swept

    alone.dvc("exp", "run", "--temp", "--name", "width=16", "-S", f"{WIDTH}=16").ok()

    assert read_tree(project, "width=16") == read_tree(alone, "width=16")
    assert any(line.endswith("\tmetrics.json") for line in read_tree(project, "width=16")[0])


@pytest.mark.parametrize(
    ("code", "text", "reason"),
    [
        (-signal.SIGKILL, "epoch 1/2\n", "its process was killed by SIGKILL"),
        (1, "epoch 1/2\nthe last line\n", "the last line"),
        (3, "", "exit code 3"),
    ],
)
def test_reason_of_a_failed_point_is_its_signal_or_its_last_line(tmp_path, code, text, reason):
    (tmp_path / "log").write_text(text)

    assert _reason(code, tmp_path / "log", 0) == reason


@pytest.mark.long  # test_sweep.py has a point that fails alone
def test_point_that_kills_its_process_fails_alone(swept, sweep_in):
    project, _, outcome = swept

    assert outcome.code == 1
    assert "error: 1 of 3 points failed" in outcome.err
    assert "width=13: its process was killed by SIGKILL" in outcome.err
    assert "Traceback" not in outcome.text
    assert sweep_in(project).experiments() == ["width=16", "width=8"]


@pytest.mark.long
def test_name_that_another_project_of_the_repository_takes_in_the_training_is_reported(swept, sweep_in):
    """The model of this width stores an experiment of the name, as the sweep of another project does."""
    project, _, _ = swept
    sweep = sweep_in(project, "-S", f"{WIDTH}=17")

    refused, again = sweep.run(), sweep.run()

    message = "another sweep has used the name width=17 for other params. Run the same command again"
    assert (refused.code, refused.err.splitlines()[-1]) == (1, f"width=17: {message}")
    assert again.code == 0, again.text
    assert sum(name.startswith("width=17-") for name in sweep.experiments()) == 1


@pytest.mark.long
def test_points_run_if_the_cache_lacks_the_outputs_of_the_commit(finished, sweep_in):
    """As in a fresh clone of a project with a dvc.lock."""
    for name in (".dvc/cache", ".dvc/tmp", "artifacts", "data", ".runs"):
        shutil.rmtree(finished.folder / name, ignore_errors=True)

    outcome = sweep_in(finished, "-S", f"{RATE}=choice(0.002)").run()

    assert outcome.code == 0, outcome.text


@pytest.mark.long
def test_points_save_and_exit_if_the_server_is_killed(project, sweep_in):
    project.edit("params.yaml", "num_epochs: 2", "num_epochs: 9")
    sweep = sweep_in(project, "-S", f"{RATE}=choice(0.002)")

    with sweep.start() as process:
        sweep.wait_for(process, experiments=0, training=1)
        [server] = [pid for pid in sweep.processes() if parent_of(pid) == process.pid]
        os.kill(server, signal.SIGKILL)
        assert process.wait(LIMIT_SECONDS) == 1
    wait_until(lambda: not sweep.processes())
    outcome = sweep.run()

    assert outcome.code == 0, outcome.text
    assert sweep.epochs("learning_rate=0.002") == list(range(1, 10))


@pytest.fixture
def start_point(project):
    """Yield a function that starts the process of a point in a copy of the project."""
    base = freeze(project.folder)
    [planned] = plan_points(base, expand([f"{RATE}=choice(0.002)"]))
    lock = base.root / SWEEP_FOLDER / "test.sweep"
    job = Job(base, planned, lock)
    lock.parent.mkdir(parents=True)
    with ExitStack() as stack:
        for each in (closing(POINT_SERVERS), hold_lock(lock)):
            stack.enter_context(each)
        folder = stack.enter_context(temporary_copy(base, job.copy_folder))
        with job.log.open("wb") as log, Path(os.devnull).open("rb") as stdin:
            request = build_request(job, folder, {})
            yield lambda: POINT_SERVERS.start(base, request, log, stdin.fileno())


def wait_for_start(process):
    """Wait until the process of the point has started."""
    while process.pid is None:
        process.wait(1)


def test_signal_reaches_a_point_from_the_moment_of_its_start_and_prevents_a_later_start(start_point, project):
    for _ in range(3):
        process = start_point()
        wait_for_start(process)
        assert stop(process) in (-signal.SIGTERM, 128 + signal.SIGTERM)

    first = start_point()
    first.signal(signal.SIGTERM)

    second = start_point()
    wait_for_start(second)
    stop(second)
    assert first.pid is None
    wait_until(lambda: count_points(project) == 0)


def stop(process):
    """Stop the point and return the exit code of its process."""
    process.signal(signal.SIGTERM)
    with closing(process):
        while process.wait(1) is None:
            pass
    return process.code


def count_points(project):
    """Return the number of processes in copies of points."""
    places = (project.folder / ".runs/sweep").glob("*.copy")
    return sum(1 for place in places for _ in pids_below(place))


def test_point_whose_run_store_another_one_uses_runs_again_after_it(tmp_path):
    """Points with other params may have the same data, and so the same run; one that waits for none fails."""
    in_use, first = RunInUseError("the run store is in use"), Future()
    outcomes = {"second": [in_use, None], "third": [None], "fourth": [in_use]}
    started, reported = [], []

    def submit(job):
        started.append(job.point.name)
        if job.point.name == "first":
            return first
        if job.point.name == "third":
            first.set_result(None)
        future = Future()
        future.set_result(outcomes[job.point.name].pop(0))
        return future

    for names in (["first", "second", "third"], ["fourth"]):
        points = [PlannedPoint(Point((), ()), name, params={"a.yaml": name}) for name in names]
        jobs = [Job(None, point, tmp_path / "sweep.sweep") for point in points]
        run_jobs(jobs, 2, submit, lambda job, error: reported.append((job.point.name, error)))

    assert started == ["first", "second", "third", "second", "fourth"]
    assert reported == [("first", None), ("third", None), ("second", None), ("fourth", in_use)]


@pytest.mark.long  # test_point_whose_run_store_another_one_uses_runs_again_after_it
def test_points_with_the_same_data_run_one_after_the_other(project, sweep_in):
    project.edit("params.yaml", "valid_fraction: 0.8", "valid_fraction: 0")

    swept = sweep_in(project, "-j", "2", "-S", "load_data.seed=1,2")

    assert swept.run().code == 0
    assert len(swept.experiments()) == 2
    assert len([name for name in swept.logs() if swept.epochs(name)]) == 1  # the other one found its store
