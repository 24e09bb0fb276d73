"""Batches on an accelerator. ``meta`` is a device that every machine has and that is not the CPU."""

import itertools
import logging
import threading
from contextlib import contextmanager

import pytest
import torch
from plain_copier import PlainCopier
from torch.utils._python_dispatch import TorchDispatchMode

from stages.contracts.user_code import user_frames
from stages.data import Batch, DataLoaderBuilder, MapperDataset, NormalizeBatcher, TensorDataset
from stages.data.host_loader import HostLoader, Order
from stages.data.loaders import DeviceLoader, Transfer, fits

SAMPLES, BATCH_SIZE = 10, 4
IMAGES = torch.arange(SAMPLES * 6, dtype=torch.uint8).reshape(SAMPLES, 2, 3)
DATASET = TensorDataset(IMAGES, torch.arange(SAMPLES))
NORMALIZE = NormalizeBatcher(mean=30.0, std=11.0)

ACCELERATOR = torch.accelerator.current_accelerator(check_available=True)
needs_accelerator = pytest.mark.skipif(ACCELERATOR is None, reason="no accelerator found")

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU with CUDA found")


class HostCopies(TorchDispatchMode):
    """Counts the copies from the CPU to another device, with their dtypes."""

    def __init__(self):
        super().__init__()
        self.dtypes = []

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        inputs = [each for each in args if isinstance(each, torch.Tensor)]
        if isinstance(result, torch.Tensor) and not result.is_cpu and any(each.is_cpu for each in inputs):
            self.dtypes.append(result.dtype)
        return result


def build(dataset=DATASET, batcher=NORMALIZE, seed=7):
    builder = DataLoaderBuilder(batcher).batch_size(BATCH_SIZE)
    return builder if seed is None else builder.shuffle(seed)


def flipped(sample):
    return (sample[0].flip(-1) if torch.rand(()) < 0.5 else sample[0]), sample[1]


def copies_of(batches):
    with HostCopies() as copies:
        for _ in batches:
            pass
    return copies.dtypes


@pytest.mark.parametrize("workers", [0, 2])
def test_resident_split_is_copied_once_and_the_order_once_per_epoch(workers):
    loader = build().resident(True).num_workers(workers).set_device("meta").build(DATASET)

    first, second = copies_of(loader), copies_of(loader)

    assert sorted(map(str, first)) == ["torch.int64", "torch.int64", "torch.uint8"]
    assert second == [torch.int64]


def test_resident_split_without_shuffling_copies_no_order():
    loader = build(seed=None).resident(True).set_device("meta").build(DATASET)
    copies_of(loader)

    assert copies_of(loader) == []


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("position", [0, 1, 2, 3])
def test_batches_on_a_device_have_the_shapes_of_those_on_the_cpu(resident, position):
    def shapes(loader):
        loader.set_position(position)
        return [(each.inputs.shape, each.inputs.dtype, each.targets.shape) for each in loader]

    on_device = build().resident(resident).set_device("meta").build(DATASET)

    assert shapes(on_device) == shapes(build().build(DATASET))


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", [DATASET, MapperDataset(DATASET, flipped)], ids=["memory", "mapped"])
def test_stored_dtype_is_copied_to_the_device_and_normalized_there(dataset, workers, prefetch):
    builder = build().resident(False).prefetch(prefetch).num_workers(workers)
    loader = builder.set_device("meta").build(dataset)

    with HostCopies() as copies:
        batches = list(loader)

    assert set(copies.dtypes) == {torch.uint8, torch.int64}
    assert {batch.inputs.dtype for batch in batches} == {torch.float32}


class Doubling:
    """A batcher of a user."""

    def batch(self, items):
        inputs, targets = zip(*items, strict=True)
        batch = Batch(2.0 * torch.stack(inputs), torch.stack(targets))
        assert batch.inputs.is_cpu
        return batch


def test_batcher_of_a_user_stays_on_the_cpu(caplog):
    loader = build(batcher=Doubling()).resident(True).set_device("meta").build(DATASET)

    with HostCopies() as copies:
        assert len(list(loader)) == len(loader)

    assert torch.float32 in copies.dtypes
    assert "resident is true, but" in caplog.text


@pytest.fixture
def streams(monkeypatch):
    """Treat ``meta`` as a device with streams."""
    monkeypatch.setattr("stages.data.loaders.STREAM_DEVICES", ("meta",))
    monkeypatch.setattr("stages.data.loaders.find_copier", PlainCopier)


class Threads:
    """A data set that records the threads in which it is called."""

    def __init__(self):
        self.called_in = set()

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.called_in.add(threading.current_thread())
        return DATASET[index]


@pytest.mark.usefixtures("streams")
def test_code_of_a_user_runs_in_the_thread_of_the_model():
    """Both may draw from the global generators."""
    dataset = Threads()
    loader = build().set_device("meta").build(dataset)

    assert [len(batch.inputs) for batch in loader] == [4, 4, 2]
    assert dataset.called_in == {threading.current_thread()}


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize("workers", [0, 2])
def test_prefetched_pass_can_be_left_early_and_repeated(workers):
    loader = build().resident(False).num_workers(workers).set_device("meta").build(DATASET)

    for taken in (1, 2, 0):
        assert [len(batch.targets) for batch in itertools.islice(loader, taken)] == [4] * taken
        assert [len(batch.targets) for batch in loader] == [4, 4, 2]


class Corrupt(Threads):
    def __getitem__(self, index):
        raise ValueError(f"image {index} is corrupt")


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize("workers", [0, 1])
def test_error_of_a_prefetched_batch_is_reported_with_the_frame_of_the_user(workers):
    loader = build().num_workers(workers).set_device("meta").build(Corrupt())

    with pytest.raises(ValueError, match="is corrupt") as raised:
        list(loader)

    assert [frame.function for frame in user_frames(raised.value)][-1] == "__getitem__"


def test_gathering_and_finishing_is_batching():
    items = DATASET.__getitems__(torch.tensor([3, 1]))

    expected = NORMALIZE.batch(items)
    gathered = NORMALIZE.gather(items)
    found = NORMALIZE.finish(gathered)

    assert gathered.inputs.dtype == torch.uint8
    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.targets, expected.targets)


def test_device_can_change_between_two_passes():
    loader = build().num_workers(1).build(DATASET)
    expected = [batch.inputs for batch in loader]

    loader.set_device(torch.device("meta"))
    assert {batch.inputs.device.type for batch in loader} == {"meta"}
    loader.set_device(torch.device("cpu"))

    assert all(map(torch.equal, [batch.inputs for batch in loader], expected))


@pytest.mark.parametrize(("free", "expected"), [(0, False), (560, False), (561, True)])
def test_split_is_resident_if_it_takes_less_than_a_quarter_of_the_free_memory(free, expected):
    assert fits(DATASET, free) == expected  # 60 bytes of images and 80 of targets


@pytest.mark.parametrize("option", [lambda b: b.prefetch(-1), lambda b: b.resident("maybe")])
def test_invalid_option_is_rejected(option):
    with pytest.raises(ValueError, match="must be"):
        option(build())


def test_options_change_nothing_on_a_cpu(caplog):
    caplog.set_level(logging.WARNING)
    expected = [batch.inputs for batch in build().build(DATASET)]

    found = [batch.inputs for batch in build(batcher=NORMALIZE).resident(True).prefetch(5).build(DATASET)]

    assert all(map(torch.equal, found, expected))
    assert not caplog.text


@contextmanager
def blocking_copies_forbidden():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_accelerator
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [DATASET, MapperDataset(DATASET, flipped)], ids=["memory", "mapped"])
def test_resident_prefetched_and_moved_batches_have_the_same_bits(dataset, workers):
    def batches(resident, prefetch):
        builder = build().resident(resident).prefetch(prefetch).num_workers(workers)
        loader = builder.set_device(ACCELERATOR).build(dataset)
        return [(batch.inputs.cpu(), batch.targets.cpu()) for epoch in (1, 2) for batch in loader]

    moved = batches(resident=False, prefetch=0)

    for found in (batches("auto", 2), batches(resident=False, prefetch=2), batches(False, 1)):
        for one, other in zip(found, moved, strict=True):
            assert all(map(torch.equal, one, other))


@needs_cuda
def test_resident_batches_do_not_wait_for_the_device():
    loader = build().resident(True).set_device(ACCELERATOR).build(DATASET)
    list(loader)
    batches = iter(loader)
    next(batches)

    with blocking_copies_forbidden():
        next(batches)


class PinningCopier(PlainCopier):
    """A copier whose memory counts as pinned."""

    def __init__(self, device):
        super().__init__(device)
        self.addresses = []

    def allocate(self, nbytes):
        buffer = super().allocate(nbytes)
        self.addresses.append(buffer.data_ptr())
        return buffer

    def is_pinned(self, tensor):
        return tensor.data_ptr() in self.addresses


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.bfloat16, torch.bool])
def test_samples_in_memory_are_gathered_where_they_are_copied_from(monkeypatch, dtype):
    device = torch.device("cpu")
    copier = PinningCopier(device)
    monkeypatch.setattr("stages.data.loaders.STREAM_DEVICES", ("cpu",))
    monkeypatch.setattr("stages.data.loaders.find_copier", lambda _: copier)
    dataset = TensorDataset(IMAGES.to(dtype), DATASET.targets)
    host = HostLoader(dataset, NORMALIZE, Order(SAMPLES, 4, seed=1), workers=0)

    batches = list(DeviceLoader(host, device, Transfer(resident=False)).batches(epoch=1, first=0))

    assert len(copier.addresses) == 2 * len(batches)
    for copied, expected in zip(batches, host.batches(epoch=1, first=0), strict=True):
        assert copied.inputs.equal(expected.inputs)
        assert copied.targets.equal(expected.targets)
