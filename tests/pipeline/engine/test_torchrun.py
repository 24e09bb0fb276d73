"""The stage fit under torchrun, started by two launchers, as on two hosts, with the commands of the pages."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from free_ports import free_port
from pages import page
from waiting import LIMIT_SECONDS, wait_until

from pipeline.project.yaml_files import load_yaml

NAMES = "artifacts/checkpoint", "artifacts/train", "artifacts/valid", "artifacts/metrics.json"
EPOCHS = 6
CLUSTERS = page("stages/distributed/clusters.md")
[SCRIPT] = CLUSTERS.blocks("bash")
[TRAIN_JOB] = map(load_yaml, CLUSTERS.blocks("yaml"))
README_COMMANDS = re.findall(
    r"^\$ (.*?)(?:\s+#.*)?$", page("README.md").section("Several devices and hosts"), re.MULTILINE
)


@pytest.fixture(scope="module")
def built(tmp_path_factory, checked_out):
    """Return a project that is ready to train; tests copy it."""
    project = checked_out(tmp_path_factory.mktemp("built") / "project")
    project.edit("params.yaml", "num_epochs: 20", f"num_epochs: {EPOCHS}")
    project.edit("params.yaml", "kind: cnn\n    dropout: 0.5", "kind: mlp")
    project.fork(*shlex.split(README_COMMANDS[0])).ok()
    return project


@pytest.fixture
def project(built, tmp_path):
    """Return a project that is ready to train."""
    return built.copied_to(tmp_path / "project")


@pytest.fixture(scope="module")
def expected(built, tmp_path_factory):
    """Return the outputs of `dvc repro` on two ranks."""
    project = built.copied_to(tmp_path_factory.mktemp("expected") / "project")
    project.edit("params.yaml", "device: auto", "device: [cpu, cpu]")
    project.dvc("repro", "fit").ok()
    return project.files(*NAMES)


@pytest.fixture
def port():
    """Return a free port."""
    return str(free_port())


def copy_for_other_host(project, folder):
    """Copy what a host without rank 0 needs, according to the page, and return the copy."""
    [row] = re.findall(r"^\| any other \| (.*) \|$", CLUSTERS.text, re.MULTILINE)
    for name in re.findall(r"`(.*?)`", row):
        copy = shutil.copytree if (project.folder / name).is_dir() else shutil.copy2
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy(project.folder / name, folder / name)
    return folder


def start(project, command, folder=None, **environment):
    """Start *command* of a page for one rank on this host, with its output in a file of its own."""
    command = command.replace("--nproc-per-node 8", "--nproc-per-node 1").replace("host0", "127.0.0.1")
    output = project.folder.parent / f"{len(list(project.folder.parent.glob('*.out')))}.out"
    with output.open("wb") as file:
        return subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder or project.folder,
            env=project.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )


def read_outputs(project):
    return "\n".join(each.read_text(errors="replace") for each in sorted(project.folder.parent.glob("*.out")))


def start_slurm_tasks(project, port):
    """Start what `srun` of the script starts on each of two hosts."""
    [exported] = re.findall(r"^export (PET_.*)$", SCRIPT, re.MULTILINE)
    [command] = re.findall(r"^srun (bash .*) &$", SCRIPT, re.MULTILINE)
    command = f"env {exported} {command}".replace("29500", port).replace("PER_NODE=8", "PER_NODE=1")
    variables = {"SLURM_NNODES": "2", "head": "127.0.0.1"}
    return [start(project, command, **variables, SLURM_NODEID=str(node)) for node in range(2)]


@pytest.mark.long
def test_commands_of_the_readme_train_on_two_hosts(project, expected, port, tmp_path):
    first, second, record = [each.replace("29500", port) for each in README_COMMANDS[1:]]
    other_folder = copy_for_other_host(project, tmp_path / "other-host")

    hosts = [start(project, first), start(project, second, other_folder)]

    assert [host.wait(LIMIT_SECONDS) for host in hosts] == [0, 0], read_outputs(project)
    assert "is already finished: publishing its results" in project.fork(*shlex.split(record)).ok()
    assert project.files(*NAMES) == expected
    assert "up to date" in project.dvc("status").ok()


@pytest.mark.long
def test_termination_of_one_launcher_saves_and_the_same_command_resumes(project, expected, port):
    hosts = start_slurm_tasks(project, port)
    wait_until(
        lambda: list(project.folder.glob(".runs/*/valid/epoch-1/Loss.log")), lambda: read_outputs(project)
    )
    hosts[1].send_signal(signal.SIGTERM)

    assert [host.wait(LIMIT_SECONDS) for host in hosts] == [1, 1], read_outputs(project)
    assert "stopped after epoch" in read_outputs(project)
    hosts = start_slurm_tasks(project, port)
    assert [host.wait(LIMIT_SECONDS) for host in hosts] == [0, 0], read_outputs(project)
    assert "resuming run" in read_outputs(project)
    assert project.files(*NAMES) == expected


@pytest.mark.long
def test_command_of_the_train_job_trains_in_two_pods(project, expected, port):
    trainer = TRAIN_JOB["spec"]["trainer"]
    command = shlex.join(trainer["command"]).replace("/project", str(project.folder))
    # set by the controller of Kubeflow Trainer, see pkg/runtime/framework/plugins/torch/torch.go there
    variables = {"PET_NNODES": str(trainer["numNodes"]), "PET_NPROC_PER_NODE": "1"}
    variables |= {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}

    pods = [start(project, command, Path("/"), **variables, PET_NODE_RANK=str(index)) for index in range(2)]

    assert [pod.wait(LIMIT_SECONDS) for pod in pods] == [0, 0], read_outputs(project)
    assert project.files(*NAMES) == expected


def test_script_for_slurm_has_valid_syntax(tmp_path):
    (tmp_path / "script").write_text(SCRIPT)

    subprocess.run(["bash", "-n", "script"], cwd=tmp_path, check=True)


@pytest.mark.long
def test_both_launchers_end_when_a_rank_fails(project, port):
    (project.folder / "artifacts/learner").rename(project.folder / "moved")

    hosts = start_slurm_tasks(project, port)

    assert [host.wait(LIMIT_SECONDS) for host in hosts] == [1, 1]


@pytest.mark.long
@pytest.mark.parametrize("kill", [os.kill, os.killpg])
def test_ranks_end_with_their_launcher_and_the_same_command_resumes(kill, project, port):
    command = f"setsid torchrun --nproc-per-node 2 --master-port {port} -m pipeline stage fit"
    project.edit("params.yaml", f"num_epochs: {EPOCHS}", "num_epochs: 2000")
    host = start(project, command)
    wait_until(
        lambda: list(project.folder.glob(".runs/*/valid/epoch-1/Loss.log")), lambda: read_outputs(project)
    )
    ranks = psutil.Process(host.pid).children()

    kill(host.pid, signal.SIGKILL)
    host.wait()

    psutil.wait_procs(ranks, LIMIT_SECONDS)
    assert not list(project.folder.glob(".runs/*/finished.json"))
    host = start(project, command)
    wait_until(lambda: "resuming run" in read_outputs(project), lambda: read_outputs(project))
    host.send_signal(signal.SIGTERM)
    assert host.wait(LIMIT_SECONDS) == 1, read_outputs(project)
    assert "stopped after epoch" in read_outputs(project)
