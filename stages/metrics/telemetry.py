"""Metrics of the run itself: the learning rate, the iteration speed, and readings of the machine."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Self

import psutil
import torch

from stages.contracts.events import Step
from stages.contracts.history import Direction
from stages.metrics.state import Mean

REFRESH_SECONDS = 0.2
"""The minimum time between two readings of the machine, as in Burn."""
PROCESSOR_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "acpitz")
"""The names of processor sensors, the most exact first."""


class LearningRateMetric:
    """The learning rate, as the mean over steps.

    It is measured in training only, since validation has no optimizer steps.
    """

    name = "Learning Rate"
    unit = None
    train_only = True

    def measure_step(self, step: Step) -> Mean:
        """Return the learning rate of one step."""
        return Mean(step.learning_rate, 1)


@dataclass(frozen=True, slots=True)
class Speed:
    """Iterations per second, stored as its two sums."""

    timed: int
    """The number of iterations in `seconds`; the first step of an epoch is not timed."""
    seconds: float
    count: int
    """The number of steps."""

    def __add__(self, other: Self, /) -> Self:
        return type(self)(self.timed + other.timed, self.seconds + other.seconds, self.count + other.count)

    @property
    def value(self) -> float:
        """Iterations per second; 0 before the second iteration, as in Burn."""
        return self.timed / self.seconds if self.seconds else 0.0


class IterationSpeedMetric:
    """Iterations per second: for a step since the previous one, for an epoch from its first step to its last.

    Burn divides the number of iterations of the epoch by the elapsed time at each step; the epoch's value is
    the same.
    """

    name = "Iteration Speed"
    unit = "iter/sec"
    telemetry = True
    better = Direction.HIGHEST

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._expected: tuple[int, int] | None = None
        self._previous = 0.0

    def measure_step(self, step: Step) -> Speed:
        """Return the speed of one step."""
        now, previous = self._clock(), self._previous
        is_next = (step.epoch, step.iteration) == self._expected
        self._expected, self._previous = (step.epoch, step.iteration + 1), now
        return Speed(1, now - previous, 1) if is_next else Speed(0, 0.0, 1)


class Gauge:
    """The mean over steps of a reading that is refreshed at most every 200 ms.

    A reading that this machine cannot provide is NaN and has no weight.

    Args:
        read: returns the current reading.
        clock: returns the time in seconds.
    """

    telemetry = True

    def __init__(self, read: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._due = -math.inf
        self._latest = Mean(0.0, 0)

    def measure_step(self, step: Step) -> Mean:  # noqa: ARG002 - the machine has no steps
        """Return the latest reading."""
        now = self._clock()
        if now >= self._due:
            self._due = now + REFRESH_SECONDS
            reading = self._read()
            self._latest = Mean(0.0, 0) if math.isnan(reading) else Mean(reading, 1)
        return self._latest


class CpuUse(Gauge):
    """The utilization of all cores together since the previous reading, in percent."""

    name = "CPU Usage"
    unit = "%"

    def __init__(self) -> None:
        psutil.cpu_percent()
        super().__init__(psutil.cpu_percent)


class CpuTemperature(Gauge):
    """The mean temperature over the processor's sensors, in °C; NaN without sensors."""

    name = "CPU Temperature"
    unit = "°C"

    def __init__(self) -> None:
        super().__init__(_read_temperature)


class CpuMemory(Gauge):
    """The memory that all programs use, in units of 10⁹ bytes."""

    name = "CPU Memory"
    unit = "GB"

    def __init__(self) -> None:
        super().__init__(_read_memory)


class CudaMetric(Gauge):
    """The memory that all programs use on the GPUs of this process, summed, in units of 10⁹ bytes.

    The GPUs of this process are those on which it has reserved memory; NaN if there are none. Other GPUs are
    not queried, because a query takes some of their memory. Burn's metric is text and covers every GPU.
    """

    name = "Cuda"
    unit = "GB"

    def __init__(self) -> None:
        super().__init__(_read_gpu_memory)


def _read_temperature() -> float:
    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    readings = [[sensor.current for sensor in sensors.get(name, ())] for name in PROCESSOR_SENSORS]
    return next((fmean(found) for found in readings if found), float("nan"))


def _read_memory() -> float:
    return float(psutil.virtual_memory().used) / 1e9


def _read_gpu_memory() -> float:
    gpus = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)]
    free_and_total = [torch.cuda.mem_get_info(index) for index in gpus]
    return sum(total - free for free, total in free_and_total) / 1e9 if gpus else float("nan")
