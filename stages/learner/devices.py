"""The device that a model trains on, and settings of torch that apply to the process."""

import ctypes
import functools
import os
import sys

import torch

from stages.contracts.errors import BuilderError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MAX_RETAINED_BYTES = 1 << 30


def find_device(name: str | torch.device) -> torch.device:
    """Return the device *name*: ``auto`` (the fastest available), ``cpu``, ``cuda:0`` or ``mps``.

    Raises `BuilderError` for an unknown name and for a device that this machine does not have.
    """
    if name == "auto":
        return torch.device(list_devices()[0])
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    names = ", ".join(["auto", *list_devices()])
    if device is None:
        raise BuilderError(f"unknown device {str(name)!r}: use one of this machine: {names}")
    is_missing = device.type not in {each.split(":")[0] for each in list_devices()}
    if is_missing or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise BuilderError(f"this machine has no device {str(name)!r}: use one of {names}")
    return device


def set_deterministic() -> None:
    """Have torch use deterministic algorithms, and raise an error for operations that have none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA is first used
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False


def list_devices() -> list[str]:
    """Return the names of the devices of this machine, the fastest first."""
    names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return [*names, "cpu"]


def set_num_threads(num_threads: int | None) -> None:
    """Set the number of CPU threads that torch computes with; None keeps the current number."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)


@functools.cache
def retain_freed_memory() -> bool:
    """Have the process keep freed blocks of up to 1 GiB; return whether the C library supports it.

    glibc does. By default it returns every large tensor to the system and gets the memory back, page by page,
    at the next step. This costs some memory, changes no number, and applies to the process until it exits.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(
        mallopt
        and mallopt(M_MMAP_THRESHOLD, MAX_RETAINED_BYTES)
        and mallopt(M_TRIM_THRESHOLD, MAX_RETAINED_BYTES)
    )
