"""The devices of this machine, and settings of torch for the computation of a run, while the process trains.

Portable runs have the same bits on every x86-64 CPU with AVX2, by one choice of kernels for all of them:
torch and its libraries choose kernels by the CPU, and kernels differ in the order of their additions. ATen
and MKL read an environment variable when they first compute. oneDNN and NNPACK also choose by the sizes of
the caches, so a portable run does not use them. MKL's vector functions, to which ATen leaves `torch.sqrt`
and others, have no such variable: `describe_portable_optimizer_conflict` refuses optimizers that use them.
"""

import ctypes
import logging
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from stages.contracts.errors import BuilderError
from stages.contracts.fields import Precision

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FLOAT32_BACKENDS = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
"""The parts of `torch.backends` that may compute float32 with fewer bits; each has ``fp32_precision``."""
VARIABLES = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE"}
"""The environment variables of a portable run."""
CPU_FEATURES = ("avx2", "fma")
CAPABILITY = "AVX2"
MKL_BRANCH, MKL_COMPATIBLE = 1, 3
"""Of ``mkl_cbwr_get`` in MKL's header ``mkl_service.h``."""
log = logging.getLogger(__name__)


def find_device(name: str | torch.device) -> torch.device:
    """Return the device *name*: ``auto`` (the fastest available), ``cpu``, ``cuda:0``, ``xpu:0`` or ``mps``.

    Raises `BuilderError` for an unknown name and for a device that this machine does not have.
    """
    available = list_devices()
    if name == "auto":
        return torch.device(available[0])
    names = ", ".join(["auto", *available])
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BuilderError(f"unknown device {str(name)!r}: use one of this machine: {names}") from error
    present = [(entry.type, entry.index or 0) for entry in map(torch.device, available)]
    if device.type != "cpu" and (device.type, device.index or 0) not in present:
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
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        if settings.num_threads is not None:
            torch.set_num_threads(settings.num_threads)
        if settings.portable:
            _set_portable(stack, device)
        with warnings.catch_warnings(action="ignore"):  # some versions of torch warn of the older API
            _set_float32_precision(stack, "tf32" if settings.precision == "tf32" else "ieee")
        if settings.deterministic:
            _set_deterministic(stack)
        if is_accelerator(device):
            stack.enter_context(torch.accelerator.device_index(device.index))
        yield


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
    stack.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
    torch.use_deterministic_algorithms(mode=True)
    _set_for_block(stack, torch.backends.cudnn, "benchmark", value=False)
    # the fill is one more kernel per empty tensor, and no operation of a step reads such memory
    _set_for_block(stack, torch.utils.deterministic, "fill_uninitialized_memory", value=False)


def _set_for_block(stack: ExitStack, owner: Any, name: str, *, value: Any) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def prepare_portable() -> None:
    """Have torch choose the kernels of a portable run; call this before torch first computes."""
    if find_obstacle() is None:
        os.environ.update(VARIABLES)


def find_obstacle() -> str | None:
    """Return the reason for which this machine cannot run portably; None if it can."""
    if platform.machine() != "x86_64":
        return f"the architecture is {platform.machine()}, not x86-64"
    flags = _cpu_flags()
    missing = [name for name in CPU_FEATURES if name not in flags]
    if missing:
        return f"the CPU has no {' and no '.join(missing)}"
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return "torch was built without MKL"
    return None


def check_kernels(device: torch.device) -> None:
    """Raise `BuilderError` if a portable run on *device* is too late: this process has computed already."""
    if device.type != "cpu" or find_obstacle() is not None:
        return
    prepare_portable()
    if torch.backends.cpu.get_cpu_capability() != CAPABILITY or _mkl_branch() != MKL_COMPATIBLE:
        names = " ".join(f"{name}={value}" for name, value in VARIABLES.items())
        raise BuilderError(
            "a portable run chooses its kernels before torch first computes, and this process has computed "
            "already. Call stages.devices.prepare_portable() at the start of the program, or set the "
            f"environment variables {names}"
        )


def _set_portable(stack: ExitStack, device: torch.device) -> None:
    """Compute without oneDNN and NNPACK; if that is not portable, only log a warning."""
    obstacle = find_obstacle() if device.type == "cpu" else f"the run computes on {device}"
    if obstacle is not None:
        log.warning("portable has no effect, because %s", obstacle)
        return
    _set_for_block(stack, torch.backends.mkldnn, "enabled", value=False)
    stack.enter_context(torch.backends.nnpack.flags(enabled=False))


def _cpu_flags() -> set[str]:
    """Return the words of Linux's description of the CPUs, such as ``avx2``; none if it cannot be read."""
    with suppress(OSError):
        return set(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split())
    return set()


def _mkl_branch() -> int:
    """Return the number of MKL's code path; that of a portable run if torch does not export the function."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    get = getattr(ctypes.CDLL(str(library)), "mkl_serv_cbwr_get", None)
    return MKL_COMPATIBLE if get is None else int(get(MKL_BRANCH))
