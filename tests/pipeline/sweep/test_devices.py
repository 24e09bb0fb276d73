"""Each job claims its GPUs by file locks; the tests use real processes and need no GPU."""

import os
import subprocess

import pytest
from forked_programs import ForkedProgram
from waiting import LIMIT_SECONDS, wait_until

from pipeline.sweep.job import claim_devices, count_needed, parse_devices, visible_devices
from stages.contracts.errors import StageError

TWO_GPUS = """\
GPU 0: NVIDIA H200 (UUID: GPU-11111111-aaaa)
GPU 1: NVIDIA H200 (UUID: GPU-22222222-bbbb)
"""
MIG_DEVICES = """\
GPU 0: NVIDIA H200 (UUID: GPU-11111111-aaaa)
  MIG 1g.18gb     Device  0: (UUID: MIG-33333333-cccc)
  MIG 1g.18gb     Device  1: (UUID: MIG-44444444-dddd)
GPU 1: NVIDIA H200 (UUID: GPU-22222222-bbbb)
"""
CLAIMING_PROGRAM = """
import sys, time
from pathlib import Path
from pipeline.sweep.job import claim_devices
with claim_devices(sys.argv[2:], int(sys.argv[1]), lambda: True) as (devices, handle):
    print(*devices, flush=True)
    while not Path("end").exists():
        time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def _separate_claims(tmp_path, monkeypatch):
    """Keep the lock files of claims in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        ("0,1", ["0", "1"]),
        (" 2 , GPU-11 ", ["2", "GPU-11"]),
        ("1,-1,0", ["1"]),
        ("0,0", ["0"]),
        ("", []),
        ("-1", []),
        ("none", []),
    ],
)
def test_cuda_visible_devices_is_parsed_as_cuda_parses_it(value, devices, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)

    assert visible_devices() == devices


def test_devices_are_parsed_from_the_output_of_nvidia_smi():
    assert parse_devices(TWO_GPUS) == ["GPU-11111111-aaaa", "GPU-22222222-bbbb"]
    assert parse_devices(MIG_DEVICES) == ["MIG-33333333-cccc", "MIG-44444444-dddd", "GPU-22222222-bbbb"]
    assert parse_devices("") == []


class Job(ForkedProgram):
    """A fork that claims *count* of *devices*, and holds them until the file ``end`` exists in *folder*."""

    def __init__(self, folder, *devices, count=1):
        folder.mkdir()
        self.folder, self._out = folder, folder / "out"
        (folder / "claiming.py").write_text(CLAIMING_PROGRAM)
        for name in ("out", "err"):
            (folder / name).touch()
        super().__init__(
            "claiming",
            (str(count), *devices),
            folder=folder,
            environment=dict(os.environ),
            streams=(self._out, folder / "err"),
        )

    def wait_for_claim(self):
        """Return the devices of this job as soon as it has claimed them."""
        return wait_until(self._out.read_text, (self.folder / "err").read_text, self).split()


@pytest.fixture
def start_job(tmp_path):
    """Yield a function that starts a job, and kill the jobs after the test."""
    jobs = []

    def start(*devices, count=1):
        jobs.append(Job(tmp_path / f"job {len(jobs)}", *devices, count=count))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
        job.wait()


def test_third_job_waits_for_a_device_until_one_of_two_is_killed(start_job):
    job_of_device = {job.wait_for_claim()[0]: job for job in (start_job("0", "1"), start_job("0", "1"))}
    assert set(job_of_device) == {"0", "1"}

    attempts = []
    with (
        pytest.raises(StageError, match="waited for a free GPU"),
        claim_devices(["0", "1"], 1, lambda: len(attempts) < 3 and not attempts.append(1)),
    ):
        pass
    assert len(attempts) == 3

    def kill_one_job():
        """Kill the job that uses device 1 while the third one waits."""
        job_of_device["1"].kill()
        return True

    with claim_devices(["0", "1"], 1, kill_one_job) as (devices, _):
        assert devices == ["1"]


def test_claim_is_held_until_the_process_that_inherits_it_exits():
    with claim_devices(["0"], 1, lambda: True) as (_, handle):
        child = subprocess.Popen(["sleep", "60"], stdin=handle)
    try:
        attempts = []
        with (
            pytest.raises(StageError),
            claim_devices(["0"], 1, lambda: len(attempts) < 2 and not attempts.append(1)),
        ):
            pass
    finally:
        child.kill()
        child.wait()

    with claim_devices(["0"], 1, lambda: True) as (devices, _):
        assert devices == ["0"]


def is_free(device):
    """Return whether a job can claim *device* now."""
    attempts = []
    try:
        with claim_devices([device], 1, lambda: not attempts and not attempts.append(1)):
            return True
    except StageError:
        return False


def test_claim_of_several_devices_is_held_until_the_process_that_inherits_it_exits():
    with claim_devices(["2", "0", "1"], 2, lambda: True) as (devices, handle):
        child = subprocess.Popen(["sleep", "60"], stdin=handle)
    try:
        assert devices == ["0", "1"]
        assert [is_free(device) for device in "012"] == [False, False, True]
    finally:
        child.kill()
        child.wait()

    assert [is_free(device) for device in "012"] == [True, True, True]


def test_inherited_claim_reads_as_an_empty_file_like_a_closed_input():
    with claim_devices(["0", "1"], 2, lambda: True) as (_, handle):
        found = subprocess.run(["cat"], stdin=handle, capture_output=True, check=True)

    assert found.stdout == b""


def test_job_that_waits_for_two_devices_holds_none(start_job):
    def one_is_free():
        """Check the free device between two tries of the job that waits for both."""
        free.append(is_free("1"))
        return len(free) < 3

    free = []
    start_job("0").wait_for_claim()
    with (
        pytest.raises(StageError, match="waited for a free GPU"),
        claim_devices(["0", "1"], 2, one_is_free),
    ):
        pass

    assert free == [True, True, True]


def test_jobs_that_need_two_of_three_devices_run_one_after_the_other(start_job):
    jobs = [start_job("0", "1", "2", count=2) for _ in range(4)]

    for job in jobs:
        (job.folder / "end").touch()  # a job ends as soon as it has its claim

    for job in jobs:
        assert len(job.wait_for_claim()) == 2
        assert job.wait(LIMIT_SECONDS) == 0


def test_claim_of_more_devices_than_are_visible_is_refused():
    with (
        pytest.raises(StageError, match=r"fit\.device needs 3 GPUs, and 2 are visible"),
        claim_devices(["0", "1"], 3, lambda: True),
    ):
        pass


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (["auto"], 1),
        (["cuda"], 1),
        (["cuda:0", "cuda:1"], 2),
        (["cuda:0", "cuda:0"], 1),
        (["cuda:2"], 3),
        (["all"], 4),
        ([], 0),
    ],
)
def test_job_claims_enough_devices_for_the_names_in_its_params(names, count):
    assert count_needed(names, visible=4) == count


def test_index_and_uuid_of_one_device_share_a_claim(tmp_path, monkeypatch):
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'E'\n{TWO_GPUS}E\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    assert visible_devices() == ["GPU-11111111-aaaa", "GPU-22222222-bbbb"]
    with (
        claim_devices(["1"], 1, lambda: True),
        claim_devices(visible_devices(), 1, lambda: True) as (devices, _),
    ):
        assert devices == ["GPU-11111111-aaaa"]
