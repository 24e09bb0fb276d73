"""Each job claims one GPU by a file lock; the tests use real processes and need no GPU."""

import os
import subprocess
import sys
import tempfile

import pytest

from pipeline.sweep.devices import claim_device, parse_devices, visible_devices
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
import sys
from pipeline.sweep.devices import claim_device
with claim_device(sys.argv[1:], lambda: True) as (device, handle):
    print(device, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _separate_claims(tmp_path, monkeypatch):
    """Keep the lock files of claims in a folder of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


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
def test_cuda_visible_devices_is_parsed_as_cuda_parses_it(value, devices):
    assert visible_devices({"CUDA_VISIBLE_DEVICES": value}) == devices


def test_devices_are_parsed_from_the_output_of_nvidia_smi():
    assert parse_devices(TWO_GPUS) == ["GPU-11111111-aaaa", "GPU-22222222-bbbb"]
    assert parse_devices(MIG_DEVICES) == ["MIG-33333333-cccc", "MIG-44444444-dddd", "GPU-22222222-bbbb"]
    assert parse_devices("") == []


def start_claiming_process(*devices):
    return subprocess.Popen(
        [sys.executable, "-c", CLAIMING_PROGRAM, *devices],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_third_job_waits_for_a_device_until_one_of_two_is_killed():
    with start_claiming_process("0", "1") as first, start_claiming_process("0", "1") as second:
        process_of_device = {process.stdout.readline().strip(): process for process in (first, second)}
        assert set(process_of_device) == {"0", "1"}

        attempts = []
        with (
            pytest.raises(StageError, match="waited for a free GPU"),
            claim_device(["0", "1"], lambda: len(attempts) < 3 and not attempts.append(1)),
        ):
            pass
        assert len(attempts) == 3

        def kill_one_process():
            """Kill the process that uses device 1 while the third job waits."""
            process_of_device["1"].kill()
            return True

        with claim_device(["0", "1"], kill_one_process) as (device, _):
            assert device == "1"
        first.kill()
        second.kill()


def test_claim_is_held_until_the_process_that_inherits_it_exits():
    with claim_device(["0"], lambda: True) as (_, handle):
        child = subprocess.Popen(["sleep", "60"], stdin=handle)
    try:
        attempts = []
        with (
            pytest.raises(StageError),
            claim_device(["0"], lambda: len(attempts) < 2 and not attempts.append(1)),
        ):
            pass
    finally:
        child.kill()
        child.wait()

    with claim_device(["0"], lambda: True) as (device, _):
        assert device == "0"


def test_index_and_uuid_of_one_device_share_a_claim(tmp_path, monkeypatch):
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'E'\n{TWO_GPUS}E\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    assert visible_devices() == ["GPU-11111111-aaaa", "GPU-22222222-bbbb"]
    with claim_device(["1"], lambda: True), claim_device(visible_devices(), lambda: True) as (device, _):
        assert device == "GPU-11111111-aaaa"
