"""The memory of the device and of this process, and the messages for a device that fails."""

import ctypes
import functools
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from stages.contracts.errors import StageError
from stages.contracts.text import format_megabytes
from stages.devices.compute_settings import is_accelerator

EXHAUSTED = re.compile(r"_STATUS_\w*ALLOC|out of memory")
"""Part of the messages for exhausted memory that are not of a `torch.OutOfMemoryError`, such as cuBLAS's."""
FAILED = re.compile(r"(CUDA|cuDNN|Triton) [Ee]rror")
"""Beginning of the messages of errors that are not a `torch.AcceleratorError`."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MAX_RETAINED_BYTES = 1 << 30


@contextmanager
def report_device_errors(device: torch.device, describe_position: Callable[[], str]) -> Iterator[None]:
    """Raise `StageError` if the memory of *device* is exhausted in the block, or if *device* fails.

    *describe_position* returns the last known position in the run without using the device. If memory is
    exhausted, the frames of the failed step are cleared, so that its tensors are freed. If the device fails,
    they are kept for ever: to free memory that it was using would call it again, and end the process.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        is_exhausted = isinstance(error, torch.OutOfMemoryError) or EXHAUSTED.search(text)
        if not (is_exhausted or isinstance(error, torch.AcceleratorError) or FAILED.match(text)):
            raise
        reason = text.partition("\n")[0].partition(". ")[0]
        if not is_exhausted:
            message = (
                f"{device} failed after {describe_position()}, the last whose values were read: {reason}. "
                "Look for a label outside the classes or an index outside a table: run with device: cpu to "
                "see the line of the code"
            )
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(error))
        else:
            message = (
                f"the memory of {device} is exhausted: {reason}. {_describe_memory(device)}Lower batch_size "
                "(grads_accumulation keeps the batch of an update), set gradient_checkpointing, or set "
                "precision to bf16"
            )
            traceback.clear_frames(error.__traceback__)
    else:
        return
    if is_accelerator(device) and is_exhausted:
        torch.accelerator.empty_cache()
    raise StageError(message)


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
def retain_freed_memory() -> None:
    """Have the process keep freed blocks of up to 1 GiB, if the C library supports it.

    glibc does. By default it returns every large tensor to the system and gets the memory back, page by page,
    at the next step. This costs some memory, changes no number, and applies to the process until it exits.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and mallopt(M_MMAP_THRESHOLD, MAX_RETAINED_BYTES):
        mallopt(M_TRIM_THRESHOLD, MAX_RETAINED_BYTES)
