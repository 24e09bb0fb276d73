"""The processor and the memory of this machine. Needs psutil, from the extra ``metrics``."""

from statistics import fmean
from typing import Any

from stages.contracts.extras import load_extra
from stages.metrics.gauge import Gauge

PROCESSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "acpitz")
"""What the sensors of a processor are called, the most exact first."""


class CpuUse(Gauge):
    """How busy all cores are together, since the reading before."""

    name = "CPU Usage"
    unit = "%"

    def __init__(self) -> None:
        psutil = _psutil(type(self))
        psutil.cpu_percent()
        super().__init__(psutil.cpu_percent)


class CpuTemperature(Gauge):
    """The mean over the processor's sensors; NaN where there are none."""

    name = "CPU Temperature"
    unit = "°C"

    def __init__(self) -> None:
        _psutil(type(self))
        super().__init__(_temperature)


class CpuMemory(Gauge):
    """The memory that all programs use, in 10⁹ bytes."""

    name = "CPU Memory"
    unit = "GB"

    def __init__(self) -> None:
        _psutil(type(self))
        super().__init__(_memory)


def _psutil(user: type[Gauge]) -> Any:
    return load_extra("psutil", "metrics", user.__name__)


def _temperature() -> float:
    psutil = _psutil(CpuTemperature)
    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    readings = [[sensor.current for sensor in sensors.get(name, ())] for name in PROCESSORS]
    return next((fmean(found) for found in readings if found), float("nan"))


def _memory() -> float:
    return float(_psutil(CpuMemory).virtual_memory().used) / 1e9
