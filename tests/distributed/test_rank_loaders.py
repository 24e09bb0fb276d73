"""Loaders that load whole batches, such as PyTorch's: several ranks divide what one process would load."""

from collections import UserDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from long_tests import long
from rank_runs import (
    STOP_AT,
    assert_equals_one_process,
    build_net,
    dataset,
    fit_in_parts,
    outcome,
    resume,
    start,
    stop_within_epoch,
)
from ranks import run_ranks
from run_files import read_run_files
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from stages.contracts.errors import BuilderError
from stages.distributed import iterate_shares
from stages.optim import Adam

SHUFFLED = "torch's shuffled loader"


class Reshuffled:
    """A loader that shuffles with the global generators, and adds *noise* to each batch."""

    def __init__(self, noise):
        self.noise = noise

    def __len__(self):
        return 10

    def __iter__(self):
        inputs, targets = dataset(77)[:]
        for batch in torch.randperm(77).split(8):
            yield inputs[batch] + self.noise * torch.randn(len(batch), 4), targets[batch]


def fit_reshuffled(directory):
    learner = start(directory).build(build_net(), Adam(), 0.05)
    learner.fit(Reshuffled(0.1), Reshuffled(0.0))
    return outcome(learner)


def test_loader_that_draws_random_numbers_has_the_batches_of_one_process(tmp_path):
    one = fit_reshuffled(tmp_path / "one")

    found = run_ranks(fit_reshuffled, 4, tmp_path / "ranks")

    assert_equals_one_process(found[0], one)


@pytest.mark.parametrize("loaders", [SHUFFLED, long("a stream"), long("a batcher of whole batches")])
def test_run_that_is_stopped_within_an_epoch_resumes_to_the_same_bytes(loaders, tmp_path):
    run_ranks(fit_in_parts, 2, tmp_path / "uninterrupted", (), 0.3, 1, "auto", loaders)

    found = run_ranks(fit_in_parts, 2, tmp_path / "interrupted", ((1, STOP_AT),), 0.3, 1, "auto", loaders)

    assert found[0][0][0] == (None, True)
    assert read_run_files(tmp_path / "interrupted") == read_run_files(tmp_path / "uninterrupted")


@pytest.mark.parametrize("size", [1, long(4)])
def test_run_that_is_resumed_on_other_ranks_trains_on_every_sample_once(size, tmp_path):
    uninterrupted = fit_in_parts(tmp_path / "one", (), 0.0, change=SHUFFLED)

    run_ranks(stop_within_epoch, 2, tmp_path / "ranks", "auto", SHUFFLED)
    found = run_ranks(resume, size, tmp_path / "ranks", "auto", SHUFFLED)

    assert found[0][0].startswith("in epoch")
    assert_equals_one_process(found[0][1], uninterrupted[1])


def fit_divided(directory, kind):
    data = dataset(16)
    sampler = DistributedSampler(data, 2, 0)
    options = {"sampler": {"sampler": sampler}, "batches": {"batch_sampler": BatchSampler(sampler, 4, False)}}
    try:
        start(directory).build(build_net(), Adam(), 0.05).fit(DataLoader(data, **options[kind]), None)
    except BuilderError as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", ["sampler", "batches"])
def test_sampler_that_divides_the_samples_is_rejected(kind, tmp_path):
    found = run_ranks(fit_divided, 2, tmp_path, kind)

    assert all("Leave the sampler out" in message for message in found)


class Encoding(UserDict):
    """A mapping with ``to``, such as the batches of a tokenizer, whose length is its number of keys."""

    def to(self, device):
        return Encoding({name: each.to(device) for name, each in self.items()})


class Named(NamedTuple):
    ids: torch.Tensor
    texts: list


@dataclass
class Described:
    ids: torch.Tensor
    texts: list


IDS, TEXTS = torch.arange(5), [*"abcde"]


@pytest.mark.parametrize(
    "batch",
    [
        {"ids": IDS, "texts": TEXTS},
        Encoding({"ids": IDS, "texts": TEXTS}),
        Named(IDS, TEXTS),
        Described(IDS, TEXTS),
        [IDS, {"texts": TEXTS, "names of classes": ["x", "y"]}, 0.5],
        (torch.tensor(3.0), [IDS, IDS], TEXTS),
        (Encoding({"ids": IDS, "texts": TEXTS}), IDS),
    ],
    ids=["dict", "encoding", "namedtuple", "dataclass", "list", "tuple", "encoding in a tuple"],
)
def test_every_part_of_a_batch_has_the_samples_of_the_share(batch):
    shares = [share.batch for rank in range(2) for share in iterate_shares([batch], rank, 2)]

    assert all(type(share) is type(batch) for share in shares)
    assert ["a, b, c" in str(share).replace("'", "") for share in shares] == [True, False]
    assert ["d, e]" in str(share).replace("'", "") for share in shares] == [False, True]
    assert ["tensor([0, 1, 2])" in str(share) for share in shares] == [True, False]
    assert ["tensor([3, 4])" in str(share) for share in shares] == [False, True]


PARTS = {
    "texts in a tuple": (("a", "b", "c", "d"), ("a", "b"), ("c", "d")),
    "an array": (np.arange(4), np.array([0, 1]), np.array([2, 3])),
    "targets of an image each": ([[1], [2, 3], [], [4]], [[1], [2, 3]], [[], [4]]),
}


@pytest.mark.parametrize("part", PARTS)
def test_parts_without_tensors_have_the_samples_of_the_share(part):
    whole, *expected = PARTS[part]

    shares = [share.batch for rank in range(2) for share in iterate_shares([(IDS[:4], whole)], rank, 2)]

    assert [type(texts) for _, texts in shares] == [type(whole)] * 2
    assert [[*texts] for _, texts in shares] == [[*each] for each in expected]


@pytest.mark.parametrize("kind", [list, tuple])
def test_containers_of_tensors_are_not_taken_for_samples(kind):
    batch = kind([{"ids": IDS[:2]}, {"ids": IDS[:2]}])

    shares = [share.batch for rank in range(2) for share in iterate_shares([batch], rank, 2)]

    assert [[each["ids"].tolist() for each in share] for share in shares] == [[[0], [0]], [[1], [1]]]


@pytest.mark.parametrize("batch", [([torch.zeros(4), torch.zeros(2)], IDS), "text"])
def test_batch_that_cannot_be_divided_is_rejected(batch):
    with pytest.raises(BuilderError, match="the ranks cannot"):
        next(iterate_shares([batch], 0, 2))
