"""Batches that depend on the seed and the epoch only."""

import random
import tracemalloc

import numpy as np
import pytest
import torch
from long_tests import covering_cases

from stages.contracts.errors import CheckpointError
from stages.data import Batch, DataLoaderBuilder, MapperDataset, NormalizeBatcher, Samples, TensorDataset
from stages.data.host_loader import Order
from stages.devices.rng import derive_seed


class Ordinary:
    """A data set with a length and items only."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.full((2,), float(index)), torch.tensor(index)


ROWS = {index: float(index) for index in range(10)}


class Rows(Ordinary):
    """A data set that returns several rows at once."""

    def __getitems__(self, indices):
        return [(torch.full((2,), ROWS[index]), torch.tensor(index)) for index in indices]


def noise():
    """Return one random number of each generator that a data set may use, of shape (3,)."""
    return torch.tensor([torch.rand(()).item(), random.gauss(0, 1), np.random.normal()])


def noisy(sample):
    return noise(), sample[1]


class NoisyRows(Rows):
    def __getitems__(self, indices):
        return [noisy(sample) for sample in super().__getitems__(indices)]


class NoisyBatcher:
    def batch(self, items):
        return Batch(noise(), Samples.of(items).targets)


def global_states():
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())


IN_MEMORY = TensorDataset(torch.arange(10.0).repeat_interleave(2).reshape(10, 2), torch.arange(10))


def order(loader, epoch):
    loader.set_epoch(epoch)
    return [batch.targets.tolist() for batch in loader]


def builder():
    return DataLoaderBuilder(NormalizeBatcher()).batch_size(4)


DATASETS = {"in memory": IN_MEMORY, "ordinary": Ordinary(), "rows": Rows()}


@pytest.mark.parametrize(("dataset", "workers"), covering_cases(DATASETS, [1, 2], strength=1))
def test_workers_do_not_change_the_batches(dataset, workers):
    alone = builder().shuffle(7).build(dataset)
    helped = builder().shuffle(7).num_workers(workers).build(dataset)
    torch.manual_seed(0)
    before = torch.get_rng_state()

    assert [order(alone, epoch) for epoch in (1, 2)] == [order(helped, epoch) for epoch in (1, 2)]
    assert torch.equal(torch.get_rng_state(), before)


NOISY = {
    "samples": (MapperDataset(Ordinary(), noisy), NormalizeBatcher()),
    "several samples": (NoisyRows(), NormalizeBatcher()),
    "batches": (IN_MEMORY, NoisyBatcher()),
}


@pytest.mark.parametrize(("noisy_data", "seed"), covering_cases(NOISY, [None, 7], strength=1))
def test_workers_do_not_change_random_numbers(noisy_data, seed):
    dataset, batcher = noisy_data

    def inputs(epoch, workers):
        made = DataLoaderBuilder(batcher).batch_size(4).num_workers(workers)
        loader = (made if seed is None else made.shuffle(seed)).build(dataset)
        loader.set_epoch(epoch)
        return [batch.inputs.tolist() for batch in loader]

    before = global_states()
    first, second = inputs(1, 0), inputs(2, 0)
    after = global_states()

    assert after == before
    assert [inputs(2, workers) for workers in (0, 1, 2)] == [second] * 3
    assert not {str(batch) for batch in first} & {str(batch) for batch in second}
    assert len({str(batch) for batch in first}) == 3


def test_random_numbers_of_a_sample_depend_on_seed_epoch_and_index():
    """They do not depend on the batch that the sample is in."""

    def drawn(batch_size):
        loader = builder().batch_size(batch_size).shuffle(7).build(MapperDataset(Ordinary(), noisy))
        return {int(i): x.tolist() for batch in loader for x, i in zip(*batch, strict=True)}

    assert drawn(4) == drawn(3)
    assert len(set(map(str, drawn(4).values()))) == 10


def test_order_of_an_epoch_does_not_depend_on_earlier_epochs():
    walked, jumped = builder().shuffle(7).build(IN_MEMORY), builder().shuffle(7).build(IN_MEMORY)
    for epoch in (1, 2):
        order(walked, epoch)

    assert order(walked, 3) == order(jumped, 3)
    assert order(jumped, 3) != order(jumped, 4)


def test_every_sample_occurs_once_and_the_last_batch_may_be_smaller():
    batches = order(builder().shuffle(7).build(IN_MEMORY), 1)

    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(index for batch in batches for index in batch) == list(range(10))
    assert len(builder().build(IN_MEMORY)) == 3


def test_order_without_a_seed_is_that_of_the_dataset():
    assert order(builder().build(IN_MEMORY), 5) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_batcher_normalizes_without_changing_the_data():
    dataset = TensorDataset(torch.tensor([[0], [255]], dtype=torch.uint8), torch.tensor([0, 1]))
    loader = DataLoaderBuilder(NormalizeBatcher(mean=127.5, std=127.5)).batch_size(2).build(dataset)

    (batch,) = loader

    assert batch.inputs.flatten().tolist() == pytest.approx([-1.0, 1.0])
    assert dataset.inputs.tolist() == [[0], [255]]


@pytest.mark.parametrize("option", [lambda b: b.batch_size(0), lambda b: b.num_workers(-1)])
def test_invalid_option_is_rejected(option):
    with pytest.raises(ValueError, match="must be"):
        option(builder())


def test_smallest_options_are_accepted():
    loader = builder().num_workers(2).num_workers(0).batch_size(1).build(IN_MEMORY)

    assert [batch.targets.tolist() for batch in loader] == [[number] for number in range(10)]


def test_batches_are_moved_to_the_device():
    """``meta`` is a device that every machine has and that is not the CPU."""
    for workers in (0, 1):
        (batch,) = builder().batch_size(10).num_workers(workers).set_device("meta").build(IN_MEMORY)

        assert batch.inputs.device.type == batch.targets.device.type == "meta"


class Counted(Ordinary):
    """A data set that records the indices of the samples that it returned."""

    def __init__(self):
        self.asked = []

    def __getitem__(self, index):
        self.asked.append(index)
        return super().__getitem__(index)


def at(loader, epoch, position):
    """Return the batches of an iteration that starts at *position*, as exact values."""
    loader.set_epoch(epoch)
    loader.set_position(position)
    return [(batch.inputs.numpy().tobytes(), batch.targets.tolist()) for batch in loader]


@pytest.mark.parametrize(("noisy_data", "seed", "workers"), covering_cases(NOISY, [None, 7], [0, 2]))
def test_loader_with_a_position_yields_the_rest_of_the_epoch(noisy_data, seed, workers):
    dataset, batcher = noisy_data
    made = DataLoaderBuilder(batcher).batch_size(3).num_workers(workers)
    loader = (made if seed is None else made.shuffle(seed)).build(dataset)
    whole = at(loader, 2, 0)

    for position in range(len(loader) + 1):
        assert at(loader, 2, position) == whole[position:]
        assert len(loader) == 4


def test_position_applies_to_the_next_iteration_only():
    loader = builder().shuffle(7).build(IN_MEMORY)
    whole = order(loader, 1)

    loader.set_position(2)
    first = iter(loader)

    assert [batch.targets.tolist() for batch in loader] == whole
    assert [batch.targets.tolist() for batch in first] == whole[2:]


def test_skipped_samples_are_not_loaded():
    dataset = Counted()
    loader = builder().build(dataset)

    assert len(at(loader, 1, 2)) == 1
    assert dataset.asked == [8, 9]


@pytest.mark.parametrize("position", [-1, 4])
def test_position_after_the_end_is_rejected(position):
    with pytest.raises(
        CheckpointError, match=f"cannot resume after batch {position}: an epoch of this loader has 3 batches"
    ):
        builder().build(IN_MEMORY).set_position(position)


@pytest.mark.parametrize(("seed", "first"), [(None, 0), (None, 3), (7, 0), (7, 1), (7, 5_000), (7, 10_000)])
@pytest.mark.parametrize("batch_size", [1, 3, 4096])
def test_batches_divide_the_permutation_of_seed_and_epoch(seed, first, batch_size):
    samples = 9_001
    generator = torch.Generator().manual_seed(derive_seed(seed or 0, 2))
    permuted = range(samples) if seed is None else torch.randperm(samples, generator=generator).tolist()

    batches = [batch.tolist() for batch in Order(samples, batch_size, seed).batches(2, first)]

    starts = range(first * batch_size, samples, batch_size)
    assert batches == [list(permuted[start : start + batch_size]) for start in starts]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("seed", [None, 7])
def test_memory_of_an_epoch_does_not_grow_with_its_batches(workers, seed):
    """The permutation is one tensor; tracemalloc counts the Python objects beside it."""
    made = DataLoaderBuilder(NormalizeBatcher()).num_workers(workers)
    dataset = TensorDataset(torch.zeros(200_000, 1), torch.zeros(200_000))
    loader = (made if seed is None else made.shuffle(seed)).build(dataset)

    tracemalloc.start()
    next(iter(loader))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 2_000_000


@pytest.mark.parametrize("workers", [0, 1])
def test_data_set_that_returns_several_rows_draws_other_numbers_on_each_rank(workers):
    def draw(rank, size):
        loader = DataLoaderBuilder(NormalizeBatcher()).batch_size(4).num_workers(workers).build(NoisyRows())
        loader.set_share(rank, size)
        return next(iter(loader)).inputs

    first, second = draw(0, 2), draw(1, 2)

    assert not torch.equal(first, second)
    assert torch.equal(first, draw(0, 1)[:2])
    assert torch.equal(second, draw(1, 2))
