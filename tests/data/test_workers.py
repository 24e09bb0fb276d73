"""The worker processes of a loader: one pool for all epochs, which survives signals but not its parent."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from waiting import LIMIT_SECONDS, wait_until

import stages
from stages.contracts.processes import is_alive
from stages.data import DataLoaderBuilder, MapperDataset, NormalizeBatcher, TensorDataset

WORKERS = 2


class Pids:
    """A data set whose samples are the process that returned them and their index."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.tensor(os.getpid()), torch.tensor(index)


class Failing(Pids):
    """Raises an error at its last sample."""

    def __getitem__(self, index):
        if index == len(self) - 1:
            raise ValueError("sample 19 is corrupt")
        return super().__getitem__(index)


def together(items):
    return torch.stack([pid for pid, _ in items]), torch.stack([index for _, index in items])


def build(dataset=None, workers=WORKERS):
    return DataLoaderBuilder(together).batch_size(2).num_workers(workers).build(dataset or Pids())


def pids_of(batches):
    return {int(pid) for pids, _ in batches for pid in pids}


def indices_of(batches):
    return [indices.tolist() for _, indices in batches]


def noisy(sample):
    return sample[0] + torch.randn(1), sample[1]


def test_workers_are_started_once_for_all_epochs():
    loader = build()

    used = [pids_of(loader) for _ in range(3)]

    assert used[0] == used[1] == used[2]
    assert len(used[0]) == WORKERS
    assert os.getpid() not in used[0]


def test_random_numbers_of_kept_workers_depend_on_the_epoch_and_not_on_earlier_passes():
    dataset = MapperDataset(TensorDataset(torch.zeros(10, 1), torch.arange(10)), noisy)

    def inputs(loader, epoch, position=0):
        loader.set_epoch(epoch)
        loader.set_position(position)
        return [batch.inputs.tolist() for batch in loader]

    alone, helped = (
        DataLoaderBuilder(NormalizeBatcher()).batch_size(3).shuffle(7).num_workers(workers).build(dataset)
        for workers in (0, WORKERS)
    )
    passes = [(1, 0), (2, 0), (1, 0), (2, 3), (3, 1), (3, 4)]

    assert [inputs(helped, *each) for each in passes] == [inputs(alone, *each) for each in passes]


def test_pass_after_one_that_was_left_early_is_complete():
    loader = build()
    whole = indices_of(loader)
    used = pids_of(loader)

    for taken in (1, 3, 9):
        assert indices_of(itertools.islice(loader, taken)) == whole[:taken]
        assert indices_of(loader) == whole

    assert pids_of(loader) == used


def test_two_passes_at_the_same_time_have_the_same_batches():
    loader = build()

    pairs = list(zip(loader, loader, strict=True))

    assert indices_of(first for first, _ in pairs) == indices_of(second for _, second in pairs)
    assert indices_of(loader) == indices_of(build(workers=0))


def test_loader_works_again_after_an_error_in_a_worker():
    loader = build(Failing())

    for _ in range(2):
        with pytest.raises(ValueError, match="sample 19 is corrupt"):
            list(loader)


def test_workers_end_with_their_loader():
    loader = build()
    used = pids_of(loader)

    del loader

    wait_until(lambda: not any(map(is_alive, used)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_workers_ignore_signals_that_their_parent_handles(number):
    """A signal to the whole group must not end the workers before the parent has saved its work."""
    loader = build()
    used = pids_of(loader)

    for pid in used:
        os.kill(pid, number)

    assert indices_of(loader) == indices_of(build(workers=0))
    assert pids_of(loader) == used


PROGRAM = """
import os, sys, time, torch
from pathlib import Path
from stages.data import DataLoaderBuilder

class Pids:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        Path(sys.argv[1], str(os.getpid())).touch()
        if index > 1 and sys.argv[2] == "slow":
            time.sleep(3600)
        return index

loader = DataLoaderBuilder(torch.tensor).batch_size(1).num_workers(2).build(Pids())
batches = iter(loader)
next(batches), next(batches)
Path(sys.argv[1], "ready").touch()
if sys.argv[3] == "wait":
    time.sleep(3600)
"""


def started(directory, *arguments):
    """Return the program, when each of its workers has returned a batch, and their process numbers."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, directory, *arguments],
        env=os.environ | {"PYTHONPATH": str(Path(stages.__file__).parents[1])},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((directory / "ready").exists, process=program)
    return program, [int(path.name) for path in directory.iterdir() if path.name.isdigit()]


@pytest.mark.parametrize("speed", ["fast", "slow"])
def test_workers_end_with_a_killed_parent(speed, tmp_path):
    program, workers = started(tmp_path, speed, "wait")

    program.kill()
    program.communicate()

    assert len(workers) == WORKERS
    wait_until(lambda: not any(map(is_alive, workers)))


@pytest.mark.parametrize("speed", ["fast", "slow"])
def test_program_ends_without_waiting_for_its_workers(speed, tmp_path):
    """The sample that a worker loads may take an hour."""
    program, workers = started(tmp_path, speed, "end")

    printed = program.communicate(timeout=LIMIT_SECONDS)[1]

    assert (program.returncode, printed) == (0, "")
    assert not any(map(is_alive, workers))
