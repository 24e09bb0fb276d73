"""The devices of this machine, and the one that a model trains on."""

import torch

from stages.contracts.errors import BuilderError


def find_device(name: str | torch.device) -> torch.device:
    """Return the device *name*: ``auto`` (the fastest available), ``cpu``, ``cuda:0``, ``xpu:0`` or ``mps``.

    Raises `BuilderError` for an unknown name and for a device that this machine does not have.
    """
    available = list_devices()
    if name == "auto":
        return torch.device(available[0])
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    names = ", ".join(["auto", *available])
    if device is None:
        raise BuilderError(f"unknown device {str(name)!r}: use one of this machine: {names}")
    indices = [
        torch.device(entry).index or 0 for entry in available if torch.device(entry).type == device.type
    ]
    if not indices or (device.type != "cpu" and (device.index or 0) not in indices):
        raise BuilderError(f"this machine has no device {str(name)!r}: use one of {names}")
    return device


def list_devices() -> list[str]:
    """Return the names of the devices of this machine, the fastest first."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ["cpu"]
    if accelerator.type == "mps":
        return ["mps", "cpu"]
    return [*(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())), "cpu"]


def is_accelerator(device: torch.device) -> bool:
    """Return whether *device* is the kind of accelerator that this machine has."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator is not None and accelerator.type == device.type
