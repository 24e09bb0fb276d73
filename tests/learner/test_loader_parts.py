"""Datasets and samplers at any depth of a loader receive the epoch, and their generators its seed."""

import itertools
import logging
import random

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, RandomSampler, Sampler, StackDataset, Subset

from stages.learner.loader_parts import check_repeatable, find_parts, set_loader_epoch


class Epochs(Dataset):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index


class Duck:
    """A dataset that is derived from no class of torch."""

    def __init__(self, inner):
        self.parts = {"inner": inner, "again": self}

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.parts["inner"][index]


class Wrapped(Sampler):
    def __init__(self, inner, **state):
        self.inner = inner
        self.__dict__.update(state)

    def __len__(self):
        return len(self.inner)

    def __iter__(self):
        return iter(self.inner)


WRAPPERS = {
    "plain": lambda each: each,
    "subset": lambda each: Subset(each, range(8)),
    "concatenation": lambda each: ConcatDataset([Epochs(), each]),
    "stack": lambda each: StackDataset(x=each),
    "duck": Duck,
    "deep": lambda each: Subset(ConcatDataset([Duck(Subset(each, range(8)))]), range(8)),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_dataset_at_any_depth_receives_the_epoch(wrap):
    dataset = Epochs()

    set_loader_epoch(DataLoader(wrap(dataset), 4), 3, 1)

    assert dataset.epoch == 3


def test_sampler_in_a_sampler_receives_the_epoch():
    inner = Wrapped(range(8))
    inner.set_epoch = lambda epoch: setattr(inner, "epoch", epoch)

    set_loader_epoch(DataLoader(Epochs(), sampler=Wrapped(Wrapped(inner))), 3, 1)

    assert inner.epoch == 3


GENERATORS = {
    "torch": (torch.Generator, lambda each: torch.rand(3, generator=each).tolist()),
    "numpy": (np.random.default_rng, lambda each: each.random(3).tolist()),
    "philox": (lambda: np.random.Generator(np.random.Philox()), lambda each: each.random(3).tolist()),
    "numpy-legacy": (np.random.RandomState, lambda each: each.rand(3).tolist()),
    "python": (random.Random, lambda each: [each.random() for _ in range(3)]),
}


@pytest.mark.parametrize(("create", "draw"), GENERATORS.values(), ids=GENERATORS)
def test_generator_in_a_nested_sampler_depends_on_the_epoch_alone(create, draw):
    def draw_in(epoch):
        generator = create()
        draw(generator)
        loader = DataLoader(Epochs(), sampler=Wrapped(Wrapped(range(8), random=generator)))
        for each in range(1, epoch + 1):
            set_loader_epoch(loader, each, 100 + each)
        return draw(generator)

    assert draw_in(2) == draw_in(2)
    assert draw_in(2) != draw_in(3)


def test_two_nested_generators_draw_different_numbers():
    samplers = [RandomSampler(range(100), generator=torch.Generator()) for _ in range(2)]

    set_loader_epoch(DataLoader(Epochs(), sampler=Wrapped(range(8), inners=samplers)), 1, 5)

    first, second = map(list, samplers)
    assert first != second


def test_global_generators_keep_their_state():
    state = torch.get_rng_state()

    set_loader_epoch(DataLoader(Epochs(), sampler=Wrapped(range(8), inner_=torch.default_generator)), 1, 5)

    assert torch.equal(torch.get_rng_state(), state)


def test_walk_ends_in_cycles_and_enters_no_foreign_object():
    dataset = Epochs()
    dataset.itself, dataset.model, dataset.many = dataset, torch.nn.Linear(1, 1), [Epochs()] * 2000
    dataset.labels, dataset.table = np.zeros(8), torch.zeros(8)
    set_loader_epoch(DataLoader(dataset), 1, 1)

    assert [type(each).__name__ for each in find_parts(DataLoader(dataset))] == [
        "DataLoader",
        "Epochs",
        "SequentialSampler",
        "BatchSampler",
    ]


@pytest.mark.parametrize("state", [itertools.count(), random.SystemRandom(), (each for each in "ab")])
def test_part_that_cannot_be_repeated_is_warned_of(state, caplog):
    loader = DataLoader(Epochs(), sampler=Wrapped(Wrapped(range(8), state=state)))

    with caplog.at_level(logging.WARNING):
        check_repeatable(loader)

    assert f"Wrapped has a {type(state).__name__}, which cannot be set" in caplog.text
