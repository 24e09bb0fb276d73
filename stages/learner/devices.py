"""The device that a model trains on, and settings of torch that apply to the process."""

import ctypes
import functools
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from stages.contracts.errors import BuilderError, StageError
from stages.contracts.text import format_megabytes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MAX_RETAINED_BYTES = 1 << 30


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
    indices = [torch.device(each).index or 0 for each in available if torch.device(each).type == device.type]
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


def set_num_threads(num_threads: int | None) -> None:
    """Set the number of CPU threads that torch computes with; None keeps the current number."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)


@contextmanager
def report_out_of_memory(device: torch.device) -> Iterator[None]:
    """Raise `StageError` with the use of memory if the memory of *device* is exhausted in the block.

    The frames of the failed step are cleared, so that its tensors are freed.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        memory = _describe_memory(device)
        reason = str(error).partition(". ")[0]
        traceback.clear_frames(error.__traceback__)
        del error
    else:
        return
    if is_accelerator(device):
        torch.accelerator.empty_cache()
    raise StageError(
        f"the memory of {device} is exhausted: {reason}. {memory}Lower batch_size (grads_accumulation keeps "
        "the batch of an update), set gradient_checkpointing, or set precision to bf16"
    )


def _describe_memory(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    peak = torch.cuda.max_memory_allocated(device)
    return (
        f"Allocated were {format_megabytes(allocated)}, reserved {format_megabytes(reserved)}, and the peak "
        f"was {format_megabytes(peak)}. "
    )


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
