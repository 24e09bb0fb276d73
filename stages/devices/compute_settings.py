"""Settings of torch for the computation of a run, which apply to the process while it trains."""

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from stages.contracts.errors import BuilderError
from stages.contracts.fields import Precision
from stages.devices.portability import check_kernels, portable_backends
from stages.devices.selection import is_accelerator

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FLOAT32_BACKENDS = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
"""The parts of `torch.backends` that may compute float32 with fewer bits; each has ``fp32_precision``."""


@dataclass(frozen=True)
class ComputeSettings:
    """How torch computes: the same bits each time or the fastest way, and with which floats."""

    deterministic: bool = False
    """Use deterministic algorithms, and raise an error for operations that have none."""
    precision: Precision = "f32"
    """``f32`` (IEEE), ``tf32``, or autocast to ``bf16`` or ``fp16``."""
    num_threads: int | None = None
    """Threads on a CPU; None keeps torch's choice."""
    portable: bool = False
    """Compute the same bits on every x86-64 CPU with AVX2."""


def prepare_process(settings: ComputeSettings, device: torch.device) -> None:
    """Set what libraries read when they first compute: cuBLAS for deterministic *settings*, MKL for portable.

    Raises `BuilderError` if this process has used them without it.
    """
    if settings.portable:
        check_kernels(device)
    if not settings.deterministic or device.type != "cuda" or os.environ.get(CUBLAS_WORKSPACE):
        return
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise BuilderError(
            f"deterministic algorithms need {CUBLAS_WORKSPACE}=:4096:8, and this process has used CUDA "
            "without it. Set the environment variable before the program starts"
        )
    os.environ[CUBLAS_WORKSPACE] = ":4096:8"


@contextmanager
def apply_compute_settings(settings: ComputeSettings, device: torch.device) -> Iterator[None]:
    """Apply *settings* and make *device* the current one for the block; restore the previous values after."""
    prepare_process(settings, device)
    with ExitStack() as stack:
        _set_threads(stack, settings.num_threads)
        if settings.portable:
            stack.enter_context(portable_backends(device))
        with warnings.catch_warnings(action="ignore"):  # some versions of torch warn of the older API
            _set_float32_precision(stack, "tf32" if settings.precision == "tf32" else "ieee")
        if settings.deterministic:
            _set_deterministic(stack)
        if is_accelerator(device) and device.index is not None:
            stack.enter_context(torch.accelerator.device_index(device.index))
        yield


def _set_threads(stack: ExitStack, num_threads: int | None) -> None:
    stack.callback(torch.set_num_threads, torch.get_num_threads())
    if num_threads is not None:
        torch.set_num_threads(num_threads)


def _set_float32_precision(stack: ExitStack, precision: str) -> None:
    """Set *precision* by both APIs of torch: the older one raises an error when read if they differ."""
    backends: dict[str, Any] = {name: attrgetter(name)(torch.backends) for name in FLOAT32_BACKENDS}
    has_tf32 = backends["cudnn.conv"].fp32_precision == "tf32"
    for backend in backends.values():
        _set_for_block(stack, backend, "fp32_precision", value="ieee")
    # the older API can now be read, whatever the caller has set; it is restored first
    stack.callback(setattr, torch.backends.cudnn, "allow_tf32", has_tf32)
    stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    for name, backend in backends.items():
        backend.fp32_precision = precision if name.startswith("cu") else "ieee"  # most CPUs have no TF32


def _set_deterministic(stack: ExitStack) -> None:
    mode = torch.get_deterministic_debug_mode()
    stack.callback(torch.set_deterministic_debug_mode, mode)
    torch.use_deterministic_algorithms(mode=True)
    _set_for_block(stack, torch.backends.cudnn, "benchmark", value=False)
    # the fill is one more kernel per empty tensor, and no operation of a step reads such memory
    _set_for_block(stack, torch.utils.deterministic, "fill_uninitialized_memory", value=False)


def _set_for_block(stack: ExitStack, owner: Any, name: str, *, value: Any) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
