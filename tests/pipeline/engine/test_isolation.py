"""Scheduled experiments: DVC runs them in a clone of the project, never in the checkout of the user."""

import os
import signal
import subprocess
import sys

import pytest
from projects import Project
from ruamel.yaml import YAML
from waiting import wait_until

RUN = """
import logging, sys
from pipeline.flows.experiments import Experiment, run_experiment
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
choice = Experiment((sys.argv[1:] or ["apart"])[0], ["fit.num_epochs=3"], [])
run_experiment(choice, logging.getLogger("run"), flow_run="", deadline=None)
"""
MODEL = """
import os, signal
from torch import nn
from stages.models.steps import ClassificationStep

class Waiting(ClassificationStep, nn.Sequential):
    def __init__(self, input_shape, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
        self.steps = 0

    def train_step(self, batch):
        self.steps += 1
        if "WAIT_IN_SECOND_EPOCH" in os.environ and self.steps == 8:
            signal.pause()
        return super().train_step(batch)
"""
NET = """
from torch import nn
from stages.models.steps import ClassificationStep

class Net(ClassificationStep, nn.Sequential):
    def __init__(self, input_shape, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
"""
GIT = (".git/HEAD", ".git/logs", ".git/refs/heads", ".git/refs/stash", ".git/config")


def checkout(project):
    """Return the files of the checkout that DVC changes if it runs an experiment there."""
    status = project.ok("git", "status", "--porcelain=2", "--branch")
    return status, project.files(*GIT, "params.yaml", "README.md", "dvc.lock", "artifacts", "data")


def outputs(project):
    """Return a mapping from each output to its hash in the dvc.lock of the experiment."""
    [ref] = project.ok("git", "for-each-ref", "--format=%(refname)", "refs/exps/**/apart").split()
    stages = YAML(typ="safe").load(project.ok("git", "show", f"{ref}:dvc.lock"))["stages"]
    return {out["path"]: out["md5"] for stage in stages.values() for out in stage["outs"]}


@pytest.fixture
def edited(finished):
    """A finished project with one staged edit and one unstaged edit."""
    finished.edit("README.md", "DVC", "D V C")
    finished.ok("git", "add", "README.md")
    finished.edit("params.yaml", "batch_size: 32", "batch_size: 64")
    return finished


@pytest.mark.long
def test_killed_experiment_keeps_the_checkout_unchanged_and_resumes(edited, tmp_path):
    (edited.folder / "waiting_model.py").write_text(MODEL)
    edited.use_model("waiting_model:Waiting")
    edited.add_deps()
    edited.ok("git", "add", "waiting_model.py")
    before = checkout(edited)
    other = edited.copied_to(tmp_path / "other")
    command = [sys.executable, "-c", RUN]
    environment = {**edited.environment, "WAIT_IN_SECOND_EPOCH": "yes"}
    process = subprocess.Popen(
        command, cwd=edited.folder, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        assert any(line.startswith("epoch 1/3") for line in process.stdout)
        wait_until(lambda: list((edited.folder / ".runs").glob("*/checkpoint/trainer-1.*")))
        os.killpg(process.pid, signal.SIGKILL)
    assert checkout(edited) == before

    again = edited.run(*command)
    other.ok("dvc", "exp", "run", "--temp", "-n", "apart", "-S", "fit.num_epochs=3")

    assert again.code == 0, again.text
    assert "resuming run " in again.out
    assert checkout(edited) == before
    assert not list((edited.folder / ".runs").rglob("*.copy"))
    assert not (edited.folder / ".dvc/tmp/exps").exists()
    assert outputs(edited) == outputs(other)


@pytest.mark.long
def test_experiment_with_a_damaged_cache_has_the_same_outputs(edited, tmp_path):
    other = edited.copied_to(tmp_path / "other")
    for place in (edited.folder / ".dvc/cache/files/md5").glob("??/*"):
        if place.suffix != ".dir":
            place.chmod(0o644)
            place.write_bytes(place.read_bytes()[:-1])
            place.chmod(0o444)

    edited.ok(sys.executable, "-c", RUN)
    other.ok(sys.executable, "-c", RUN)

    assert outputs(edited) == outputs(other)


def clone(finished, folder, *options):
    """Return a clone of the project *finished*, which has no cache."""
    finished.ok("git", "clone", "-q", *options, finished.folder.as_uri(), str(folder))
    return Project(folder, finished.environment["PREFECT_HOME"])


def take_model_from_a_submodule(finished, folder):
    (folder / "library").mkdir()
    library = Project(folder / "library", finished.environment["PREFECT_HOME"])
    (library.folder / "net.py").write_text(NET)
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "A model"]):
        library.ok("git", *arguments)
    finished.ok(
        "git", "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library.folder), "nets"
    )
    finished.use_model("nets.net:Net")
    finished.edit("dvc.yaml", "      - stages/models\n", "      - stages/models\n      - nets\n")
    finished.ok("git", "commit", "-qam", "A model in a submodule")
    return finished


def clone_shallowly_and_edit(finished, folder):
    project = clone(finished, folder / "shallow", "--depth", "1")
    project.edit("params.yaml", "batch_size: 32", "batch_size: 64")
    return project


def move_to_a_path_beyond_ascii(finished, folder):
    return finished.copied_to(folder / "größer 训练")


def clone_without_cache(finished, folder):
    return clone(finished, folder / "clone")


@pytest.mark.long  # tests/pipeline/engine/test_project_copy.py has the copies, without a run in them
@pytest.mark.parametrize(
    "prepare",
    [
        take_model_from_a_submodule,
        clone_shallowly_and_edit,
        move_to_a_path_beyond_ascii,
        clone_without_cache,
    ],
)
def test_scheduled_experiments_and_sweeps_run_in(prepare, finished, tmp_path):
    project = prepare(finished, tmp_path)

    for name in ("first", "second"):
        project.ok(sys.executable, "-c", RUN, name)
    project.ok(sys.executable, "-m", "pipeline", "sweep", "-S", "fit.seed=7")

    refs = project.ok("git", "for-each-ref", "--format=%(refname)", "refs/exps").split()
    names = {ref.rpartition("/")[2]: ref for ref in refs}
    assert sorted(names) == ["first", "second", "seed=7"]
    locks = [project.ok("git", "show", f"{names[name]}:dvc.lock") for name in ("first", "second")]
    assert locks[0] == locks[1] != project.ok("git", "show", f"{names['seed=7']}:dvc.lock")
    assert not list((project.folder / ".runs").rglob("*.copy"))
