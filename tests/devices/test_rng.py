"""The random state of a device is saved for the devices in use, and restored to those of the resumed run."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from stages.devices.rng import (
    describe_device_mismatch,
    get_rng_state,
    match_devices,
    preserve_random_state,
    set_rng_state,
    warn_of_cudnn_dropout,
)


@pytest.mark.parametrize(
    ("saved", "devices", "matched"),
    [
        ([], [], {}),
        (["cuda:0"], ["cuda:0"], {"cuda:0": "cuda:0"}),
        (["cuda:1"], ["cuda:0"], {"cuda:0": "cuda:1"}),
        (["cuda:0", "cuda:1"], ["cuda:2", "cuda:3"], {"cuda:2": "cuda:0", "cuda:3": "cuda:1"}),
        (["cuda:0", "cuda:1"], ["cuda:1"], {"cuda:1": "cuda:0"}),
        (["cuda:0"], ["cuda:0", "cuda:1"], {"cuda:0": "cuda:0"}),
        (["cuda:0"], ["mps"], {}),
        (["cuda:0"], [], {}),
        ([], ["cuda:0"], {}),
    ],
)
def test_state_of_each_device_is_matched_by_position(saved, devices, matched):
    states = {name: torch.tensor(number) for number, name in enumerate(saved)}

    assert match_devices(states, devices) == {new: states[old] for new, old in matched.items()}
    assert (describe_device_mismatch(states, devices) is None) == (saved == devices)


def test_mismatch_names_the_saved_and_the_used_devices():
    states = {"cuda:0": torch.tensor(0), "cuda:1": torch.tensor(1)}

    assert "saved for cuda:0, cuda:1, and this run uses cuda:0" in describe_device_mismatch(
        states, ["cuda:0"]
    )
    assert "saved for the CPU only, and this run uses mps" in describe_device_mismatch({}, ["mps"])


def test_random_numbers_repeat_after_the_state_is_restored():
    cpu = [torch.device("cpu")]
    state = get_rng_state(cpu)
    first = torch.rand(3)

    set_rng_state(state, cpu)

    assert torch.equal(torch.rand(3), first)
    assert state["devices"] == {}


def test_random_numbers_on_the_host_are_as_without_the_block():
    def draw():
        return torch.rand(1).item(), random.random(), np.random.random()  # noqa: S311

    state = get_rng_state([torch.device("cpu")])
    expected = draw()
    set_rng_state(state, [torch.device("cpu")])

    with preserve_random_state():
        draw()

    assert draw() == expected


@pytest.mark.parametrize(
    ("module", "device", "is_reported"),
    [
        (nn.LSTM(2, 2, num_layers=2, dropout=0.5), "cuda", True),
        (nn.Sequential(nn.RNN(2, 2, num_layers=3, dropout=0.1)), "cuda:1", True),
        (nn.GRU(2, 2, num_layers=2, dropout=0.5), "cpu", False),
        (nn.GRU(2, 2, num_layers=2), "cuda", False),
        (nn.Sequential(nn.LSTM(2, 2), nn.Dropout(0.5)), "cuda", False),
    ],
    ids=str,
)
def test_dropout_of_cudnn_is_reported_because_its_state_cannot_be_saved(module, device, is_reported, caplog):
    warn_of_cudnn_dropout(module, torch.device(device))

    assert ("a resumed run differs from an uninterrupted one" in caplog.text) == is_reported


@pytest.mark.gpu
def test_random_numbers_of_the_device_in_use_repeat():
    devices = [torch.device("cuda")]
    state = get_rng_state(devices)
    first = torch.rand(3, device="cuda")

    set_rng_state(state, devices)

    assert torch.equal(torch.rand(3, device="cuda"), first)
    assert list(state["devices"]) == ["cuda:0"]
