"""The processor and the memory of this machine. Needs psutil."""

from statistics import fmean

import psutil

from stages.metrics.gauge import Gauge

PROCESSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "acpitz")
"""What the sensors of a processor are called, the most exact first."""


class CpuUse(Gauge):
    """How busy all cores are together, since the reading before."""

    name = "CPU Usage"
    unit = "%"

    def __init__(self) -> None:
        psutil.cpu_percent()
        super().__init__(psutil.cpu_percent)


class CpuTemperature(Gauge):
    """The mean over the processor's sensors; NaN where there are none."""

    name = "CPU Temperature"
    unit = "°C"

    def __init__(self) -> None:
        super().__init__(_temperature)


class CpuMemory(Gauge):
    """The memory that all programs use, in 10⁹ bytes."""

    name = "CPU Memory"
    unit = "GB"

    def __init__(self) -> None:
        super().__init__(_memory)


def _temperature() -> float:
    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    readings = [[sensor.current for sensor in sensors.get(name, ())] for name in PROCESSORS]
    return next((fmean(found) for found in readings if found), float("nan"))


def _memory() -> float:
    return float(psutil.virtual_memory().used) / 1e9
