"""Portable runs: the same bits on every x86-64 CPU with AVX2, by one choice of kernels for all of them.

torch and its libraries choose kernels by the CPU, and kernels differ in the order of their additions.
ATen and MKL read an environment variable when they first compute. oneDNN and NNPACK also choose by the sizes
of the caches, so a portable run does not use them. MKL's vector functions, to which ATen leaves `torch.sqrt`
and others, have no such variable: `describe_portable_optimizer_conflict` refuses optimizers that use them.
"""

import ctypes
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from stages.contracts.errors import BuilderError

VARIABLES = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE"}
"""The environment variables of a portable run."""
CPU_FEATURES = ("avx2", "fma")
CAPABILITY = "AVX2"
MKL_BRANCH, MKL_COMPATIBLE = 1, 3
"""Of ``mkl_cbwr_get`` in MKL's header ``mkl_service.h``."""

log = logging.getLogger(__name__)


def prepare_portable() -> None:
    """Have torch choose the kernels of a portable run; call this before torch first computes."""
    if find_obstacle() is None:
        os.environ.update(VARIABLES)


def find_obstacle() -> str | None:
    """Return the reason for which this machine cannot run portably; None if it can."""
    if platform.machine() not in ("x86_64", "AMD64"):
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


@contextmanager
def portable_backends(device: torch.device) -> Iterator[None]:
    """Compute without oneDNN and NNPACK in the block; if that is not portable, only log a warning."""
    obstacle = find_obstacle() if device.type == "cpu" else f"the run computes on {device}"
    if obstacle is not None:
        log.warning("portable has no effect, because %s", obstacle)
        yield
        return
    onednn: Any = torch.backends.mkldnn
    before, onednn.enabled = onednn.enabled, False
    try:
        with torch.backends.nnpack.flags(enabled=False):
            yield
    finally:
        onednn.enabled = before


def _cpu_flags() -> set[str]:
    """Return the features of the first CPU, as Linux names them; empty if they cannot be read."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("flags"):
                return set(line.partition(":")[2].split())
    return set()


def _mkl_branch() -> int:
    """Return the number of MKL's code path; that of a portable run if torch does not export the function."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    get = getattr(ctypes.CDLL(str(library)), "mkl_serv_cbwr_get", None)
    return MKL_COMPATIBLE if get is None else int(get(MKL_BRANCH))
