"""The memory of the device and of this process."""

import ctypes
import functools
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from stages.contracts.errors import StageError
from stages.contracts.text import format_megabytes
from stages.devices.selection import is_accelerator

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MAX_RETAINED_BYTES = 1 << 30


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
    peak = torch.cuda.max_memory_reserved(device)
    return (
        f"Allocated were {format_megabytes(allocated)}, reserved {format_megabytes(reserved)}, at most "
        f"{format_megabytes(peak)}. "
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
