"""Batches from one device to another; ``meta`` is one that every machine has."""

from typing import NamedTuple

import torch

from stages.contracts.placement import move
from stages.learner.batches import iterate_on_device


class Pair(NamedTuple):
    one: torch.Tensor
    other: torch.Tensor


def devices(batch):
    if isinstance(batch, torch.Tensor):
        return {batch.device.type}
    parts = batch.values() if isinstance(batch, dict) else batch
    return set().union(*(devices(part) for part in parts if not isinstance(part, str)))


def test_every_tensor_of_a_batch_is_moved_and_its_structure_is_kept():
    batch = {
        "pair": Pair(torch.ones(1), torch.ones(1)),
        "list": [torch.ones(1), "text"],
        "tuple": (torch.ones(1),),
    }

    moved = move(batch, torch.device("meta"))

    assert devices(moved) == {"meta"}
    assert isinstance(moved["pair"], Pair)
    assert moved["list"][1] == "text"


def test_batches_of_a_loader_without_set_device_are_moved():
    loader = torch.utils.data.DataLoader([(torch.ones(2), torch.tensor(1))], batch_size=1)

    assert devices(list(iterate_on_device(loader, torch.device("meta")))) == {"meta"}
    assert devices(list(iterate_on_device(loader, torch.device("cpu")))) == {"cpu"}
