"""The states of the random number generators of torch, Python and NumPy.

At the start of an epoch they are a function of the seed and the epoch alone. Within an epoch they depend on
the steps before, so a checkpoint within an epoch stores them.
"""

import hashlib
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stages.devices.compute_settings import is_accelerator

log = logging.getLogger(__name__)

DeviceStates = Mapping[str, Tensor]
"""Random states by the name of the device."""


def find_cudnn_dropout(model: nn.Module) -> str | None:
    """Return the kind of a module of *model* that drops values in cuDNN if it is on CUDA.

    cuDNN's random state belongs to the process, and torch can neither seed nor read it.
    """
    for module in model.modules():
        if isinstance(module, nn.RNNBase) and module.dropout and module.num_layers > 1:
            return type(module).__name__
    return None


def warn_of_cudnn_dropout(model: nn.Module, device: torch.device) -> None:
    """Log a warning if a run of *model* on *device* cannot be resumed exactly because of cuDNN."""
    if device.type == "cuda" and (kind := find_cudnn_dropout(model)):
        log.warning(
            "dropout between the layers of %s is random in cuDNN, whose state no checkpoint can hold: a "
            "resumed run differs from an uninterrupted one. Use modules of one layer with nn.Dropout between",
            kind,
        )


def seed_generators(seed: int) -> None:
    """Seed the global generators of torch (on every device), Python and NumPy."""
    if torch.accelerator.is_available():  # without one, torch formats the stack three times
        torch.manual_seed(seed)
    seed_host_generators(seed)


def seed_host_generators(seed: int) -> None:
    """Seed torch on the CPU, Python and NumPy with *seed*. Generators of devices are unchanged."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed CUDA
    random.seed(seed)
    np.random.seed(seed % 2**32)


def seed_sample(seed: int, *path: int | str) -> None:
    """Seed the same generators from *seed* and *path*, such as the epoch and the index of a sample."""
    seed_host_generators(derive_seed(seed, *path))


def get_rng_state(devices: Sequence[torch.device]) -> dict[str, Any]:
    """Return the states of the global generators of torch (on the CPU and *devices*), Python and NumPy.

    The result is a tree of plain values and tensors, which a record can hold.
    """
    generator, (version, words, gauss), (name, key, *numbers) = _host_state()
    return {
        "torch": generator,
        "devices": {
            name: torch.get_device_module(name).get_rng_state(*_position(name))
            for name in device_names(devices)
        },
        "python": [version, torch.tensor(words, device="cpu"), gauss],
        "numpy": [name, torch.tensor(key.astype(np.int64), device="cpu"), *numbers],
    }


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore the random state of torch on the CPU, of Python and of NumPy at the end of the block."""
    state = _host_state()
    try:
        yield
    finally:
        _set_host_state(state)


@dataclass
class HostRandomState:
    """A state of the global generators on the host, to draw from it without changing the current one."""

    state: dict[str, Any]
    """The state after the last block, as `get_rng_state` returns it."""

    @contextmanager
    def use(self) -> Iterator[None]:
        """Draw from this state in the block."""
        with preserve_random_state():
            set_rng_state(self.state, [])
            try:
                yield
            finally:
                self.state = get_rng_state([])


def _host_state() -> tuple[Tensor, Any, Any]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def _set_host_state(state: tuple[Tensor, Any, Any]) -> None:
    generator, python, numpy = state
    torch.set_rng_state(generator)
    random.setstate(python)
    np.random.set_state(numpy)


def host_generator_states() -> tuple[Any, ...]:
    """Return the states of the global generators on the host, to compare them."""
    generator, python, (name, key, *numbers) = _host_state()
    return (generator.numpy().tobytes(), python, name, key.tobytes(), *numbers)


def set_rng_state(state: Mapping[str, Any], devices: Sequence[torch.device]) -> None:
    """Set the global generators to *state*, which `get_rng_state` returned; *devices* by position."""
    for name, saved in match_devices(state["devices"], device_names(devices)).items():
        torch.get_device_module(name).set_rng_state(saved, *_position(name))
    version, words, gauss = state["python"]
    name, key, *numbers = state["numpy"]
    numpy = (name, key.numpy().astype(np.uint32), *numbers)
    _set_host_state((state["torch"], (version, tuple(words.tolist()), gauss), numpy))


def device_names(devices: Sequence[torch.device]) -> list[str]:
    """Return the names of the accelerators among *devices*, such as ``cuda:0`` and ``mps``."""
    return [
        device.type if device.type == "mps" else f"{device.type}:{_index_of(device)}"
        for device in devices
        if is_accelerator(device)
    ]


def match_devices(saved: DeviceStates, devices: Sequence[str]) -> dict[str, Tensor]:
    """Return the state in *saved* for each of *devices*, matched by kind and then by order.

    A device without a counterpart is omitted.
    """
    matched: dict[str, Tensor] = {}
    unmatched = dict(saved)
    for name in devices:
        kind = name.partition(":")[0]
        counterpart = next((other for other in unmatched if other.startswith(kind)), None)
        if counterpart is not None:
            matched[name] = unmatched.pop(counterpart)
    return matched


def describe_device_mismatch(saved: DeviceStates, devices: Sequence[str]) -> str | None:
    """Return a warning if *saved* is not the random state of exactly *devices*."""
    if list(saved) == list(devices):
        return None
    return (
        f"the random state was saved for {', '.join(saved) or 'the CPU only'}, and this run uses "
        f"{', '.join(devices) or 'the CPU only'}: random numbers may differ from those of an uninterrupted "
        "run. Resume on the same devices"
    )


def _index_of(device: torch.device) -> int:
    return torch.accelerator.current_device_index() if device.index is None else device.index


def _position(name: str) -> tuple[str, ...]:
    """Return *name* if its kind of device is counted; torch has at most one ``mps``."""
    return () if name == "mps" else (name,)


def derive_seed(seed: int, *path: int | str) -> int:
    """Return a seed of 63 bits that depends only on *seed* and *path*, for example (42, "weights")."""
    text = "/".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
