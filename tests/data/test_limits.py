"""Limits of the batches in an epoch."""

import pytest
import torch

from stages import data
from stages.data.host_loader import BucketOrder, Order
from stages.learner.from_params import build_loaders
from stages.params.fit_params import FitConfig


def prepared():
    inputs = torch.arange(40.0)[:, None].numpy()
    return data.prepare(data.split(data.Arrays(inputs, torch.arange(40).numpy() % 2), 0.5, 0))


def read(loader, epoch=1, first=0):
    loader.set_epoch(epoch)
    loader.set_position(first)
    return [batch.inputs.flatten().tolist() for batch in loader]


def load(**config):
    fit = FitConfig(batch_size=4, num_workers=0, batcher="stages.data:NormalizeBatcher", **config)
    return build_loaders(fit, prepared())


@pytest.mark.parametrize("kind", [Order, BucketOrder])
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("limit", [1, 3, 4, 5, 100])
def test_limited_epoch_has_the_first_batches_of_the_epoch(kind, seed, limit):
    samples = torch.arange(14) % 5 if kind is BucketOrder else 14

    limited = kind(samples, 4, seed, limit)

    batches = [each.tolist() for each in kind(samples, 4, seed).batches(2)]
    assert [each.tolist() for each in limited.batches(2)] == batches[:limit]
    assert [each.tolist() for each in limited.batches(2, first=1)] == batches[1:limit]
    assert len(limited) == min(limit, 4)


@pytest.mark.parametrize(("limits", "sizes"), [(2, (2, 2)), ({"train": 3}, (3, 5)), ({"valid": 1}, (5, 1))])
def test_limit_of_a_split_is_the_number_of_its_batches(limits, sizes):
    train, valid = load(limit_batches=limits)

    assert (len(train), len(valid)) == sizes
    assert read(train, epoch=1) != read(train, epoch=2)


def test_overfitted_batches_are_the_same_in_each_epoch_and_the_valid_split():
    train, valid = load(overfit_batches=2, augment=[{"kind": "horizontal_flip"}])

    assert len(train) == len(valid) == 2
    assert read(train, epoch=1) == read(train, epoch=2) == read(valid)


def test_loader_resumes_within_a_limited_epoch():
    train, _ = load(limit_batches=3)

    assert read(train, epoch=2, first=1) == read(train, epoch=2)[1:]
    assert read(train, epoch=2, first=3) == []


def test_limit_below_one_is_rejected():
    with pytest.raises(ValueError, match="limit_batches must be at least 1; found 0"):
        data.DataLoaderBuilder(data.NormalizeBatcher()).limit_batches(0)
