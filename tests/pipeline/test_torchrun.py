"""The stage fit under torchrun, started by two launchers, as on two hosts."""

import socket
import subprocess
import sys
from contextlib import closing

import pytest


def start_host(project, number, port):
    """Start torchrun for host *number* of two, with one rank."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    address = ["--node-rank", str(number), "--master-addr", "127.0.0.1", "--master-port", str(port)]
    return subprocess.Popen(
        [*launcher, *address, "-m", "pipeline", "stage", "fit"],
        cwd=project.folder,
        env=project.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_stage_runs_on_the_ranks_of_two_launchers(project, other_project):
    for each in (project, other_project):
        each.ok("dvc", "repro", "build-learner")
    other_project.edit("params.yaml", "device: auto", "device: [cpu, cpu]")
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    hosts = [start_host(project, number, port) for number in range(2)]
    outputs = [host.communicate(timeout=200)[0] for host in hosts]
    other_project.ok("dvc", "repro", "fit")

    assert [host.returncode for host in hosts] == [0, 0], "\n".join(outputs)
    names = "artifacts/metrics.json", "artifacts/train", "artifacts/valid"
    assert project.files(*names) == other_project.files(*names)


@pytest.mark.long
def test_both_launchers_end_when_a_rank_fails(project):
    project.ok("dvc", "repro", "build-learner")
    (project.folder / "artifacts/learner").rename(project.folder / "moved")
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    hosts = [start_host(project, number, port) for number in range(2)]

    for host in hosts:
        host.communicate(timeout=200)
    assert all(host.returncode for host in hosts)
