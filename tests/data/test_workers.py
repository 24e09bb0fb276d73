"""The worker processes of a loader: one pool for all epochs, which survives signals but not its parent."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from waiting import LIMIT_SECONDS, wait_until

import stages
from stages.data import DataLoaderBuilder, MapperDataset, NormalizeBatcher, TensorDataset
from stages.system.processes import is_alive

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


class Recorded:
    """Four samples; a process that returns one leaves a file with its number in *directory*."""

    def __init__(self, directory, *, is_slow):
        self.directory, self.is_slow = Path(directory), is_slow

    def __len__(self):
        return 4

    def __getitem__(self, index):
        (self.directory / str(os.getpid())).touch()
        if index > 1 and self.is_slow:
            time.sleep(3600)
        return torch.tensor(index)


def load(directory, *, is_slow):
    """Return a pass whose workers have returned a batch each; the next batches of a slow one take an hour."""
    dataset = Recorded(directory, is_slow=is_slow)
    batches = iter(DataLoaderBuilder(torch.stack).batch_size(1).num_workers(WORKERS).build(dataset))
    next(batches), next(batches)
    return batches


def load_and_wait(directory, is_slow):
    batches = load(directory, is_slow=is_slow)
    (directory / "ready").touch()
    time.sleep(3600)
    del batches


def workers_in(directory):
    return [int(path.name) for path in directory.iterdir() if path.name.isdigit()]


@pytest.mark.parametrize("is_slow", [False, True])
def test_workers_end_with_a_killed_parent(is_slow, tmp_path):
    parent = multiprocessing.get_context("fork").Process(target=load_and_wait, args=(tmp_path, is_slow))
    parent.start()
    wait_until((tmp_path / "ready").exists)
    workers = workers_in(tmp_path)
    assert len(workers) == WORKERS
    assert all(map(is_alive, workers))

    parent.kill()
    parent.join()

    wait_until(lambda: not any(map(is_alive, workers)))


PROGRAM = """
import sys
from pathlib import Path
from test_workers import load

passes = [load(Path(sys.argv[1]), is_slow=is_slow) for is_slow in (False, True)]
"""


def test_program_ends_without_waiting_for_its_workers(tmp_path):
    """The sample that a worker loads may take an hour."""
    here = Path(__file__).parent
    folders = (here, here.with_name("shared"), Path(stages.__file__).parents[1])

    program = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )

    assert (program.returncode, program.stderr) == (0, "")
    assert len(workers_in(tmp_path)) == 2 * WORKERS
    assert not any(map(is_alive, workers_in(tmp_path)))
