"""Batches of a user's loader on the device of the model, with `meta` as a stand-in for an accelerator."""

import multiprocessing
import threading

import pytest
import torch
from plain_copier import PlainCopier
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from waiting import wait_until

from stages.contracts.user_code import user_frames
from stages.data import DataLoaderBuilder, NormalizeBatcher
from stages.data import TensorDataset as Tensors
from stages.distributed import warn_of_single_samples
from stages.learner.batches import check_workers, find_batch_sizes, iterate_on_device

META = torch.device("meta")
SAMPLES = 10
DATASET = TensorDataset(torch.arange(SAMPLES * 2.0).reshape(SAMPLES, 2), torch.arange(SAMPLES))


class Recorder(PlainCopier):
    """Records the tensors that are copied from staging buffers."""

    def __init__(self, device):
        super().__init__(device)
        self.copied = []

    def copy(self, staged):
        self.copied.append(staged.clone())
        return super().copy(staged)


@pytest.fixture
def copier(monkeypatch):
    """Treat ``meta`` as a device with streams, and return its copier."""
    copier = Recorder(META)
    monkeypatch.setattr("stages.learner.batches.STREAM_DEVICES", ("meta",))
    monkeypatch.setattr("stages.learner.batches.find_copier", {META: copier}.__getitem__)
    return copier


class Recording(TensorDataset):
    """Records the threads in which it is called."""

    def __init__(self, *tensors):
        super().__init__(*tensors)
        self.threads = set()

    def __getitem__(self, index):
        self.threads.add(threading.current_thread())
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATASET, 4),
        DataLoader(DATASET, 4, num_workers=1),
        [DATASET[:4], DATASET[4:8], DATASET[8:]],
    ],
    ids=["torch", "workers", "list"],
)
def test_batches_are_copied_from_staging_buffers_in_order(loader, copier):
    batches = list(iterate_on_device(loader, META))

    assert {part.device for batch in batches for part in batch} == {META}
    assert [len(inputs) for inputs, _ in batches] == [4, 4, 2]
    assert torch.equal(torch.cat(copier.copied[1::2]), torch.arange(SAMPLES))


@pytest.mark.usefixtures("copier")
def test_dataset_of_a_loader_without_workers_runs_in_the_thread_of_the_model():
    dataset = Recording(*DATASET.tensors)

    list(iterate_on_device(DataLoader(dataset, 4), META))

    assert dataset.threads == {threading.current_thread()}


@pytest.mark.usefixtures("copier")
@pytest.mark.parametrize("error", [ValueError, StopIteration])
def test_error_of_a_dataset_keeps_the_frame_of_the_user(error):
    class Broken(TensorDataset):
        def __getitem__(self, index):
            raise error("corrupt")

    with pytest.raises((ValueError, RuntimeError)) as raised:
        list(iterate_on_device(DataLoader(Broken(*DATASET.tensors), 4), META))

    cause = raised.value.__cause__ or raised.value
    assert isinstance(cause, error)
    assert [frame.function for frame in user_frames(cause)][-1] == "__getitem__"


@pytest.mark.usefixtures("copier")
def test_workers_end_when_a_pass_is_left_early():
    before = multiprocessing.active_children()  # another test may have left a loader
    batches = iter(iterate_on_device(DataLoader(DATASET, 2, num_workers=2), META))
    next(batches)
    workers = [each for each in multiprocessing.active_children() if each not in before]
    assert len(workers) == 2

    del batches

    wait_until(lambda: not any(each.is_alive() for each in workers))


@pytest.mark.gpu
@pytest.mark.parametrize("pin_memory", [True, False])
def test_copies_of_a_torch_loader_do_not_wait_for_the_device(pin_memory):
    device = torch.device("cuda:0")
    loader = DataLoader(DATASET, 2, pin_memory=pin_memory)
    list(iterate_on_device(loader, device))
    batches = iter(iterate_on_device(loader, device))
    found = [next(batches)]

    torch.cuda.set_sync_debug_mode("error")
    try:
        found += batches
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert torch.equal(torch.cat([targets for _, targets in found]).cpu(), torch.arange(SAMPLES))


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(3), 0)])


def sized(samples, kind, **options):
    data = TensorDataset(torch.zeros(samples, 3), torch.arange(samples) % 2)
    if kind == "torch":
        return DataLoader(data, 4, **options)
    return DataLoaderBuilder(NormalizeBatcher()).batch_size(4).build(Tensors(*data.tensors))


@pytest.mark.parametrize("kind", ["torch", "own"])
@pytest.mark.parametrize(
    ("samples", "ranks", "is_warned"),
    [(9, 1, True), (8, 1, False), (8, 2, False), (8, 4, True), (11, 2, True)],
)
def test_batch_norm_of_one_sample_is_warned_of_before_the_run(kind, samples, ranks, is_warned, caplog):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    warn_of_single_samples(model, find_batch_sizes(sized(samples, kind)), ranks)

    assert ("BatchNorm1d needs two values of each channel" in caplog.text) == is_warned


def test_model_without_a_batch_norm_and_loader_that_drops_the_last_batch_are_not_warned_of(caplog):
    warn_of_single_samples(nn.Linear(3, 4), [1], 1)
    warn_of_single_samples(nn.BatchNorm1d(4), find_batch_sizes(sized(9, "torch", drop_last=True)), 1)
    warn_of_single_samples(nn.BatchNorm1d(4), find_batch_sizes([torch.zeros(1)]), 1)
    warn_of_single_samples(nn.BatchNorm1d(4), find_batch_sizes(DataLoader(Stream(), 4)), 1)

    assert not caplog.text


@pytest.mark.parametrize(("workers", "in_order"), [(0, False), (1, False), (2, True), (2, False)])
def test_workers_that_return_batches_in_any_order_are_reported(workers, in_order, caplog):
    check_workers([], DataLoader(DATASET, num_workers=workers, in_order=in_order))

    assert ("will not equal an uninterrupted one" in caplog.text) == (workers == 2 and not in_order)
