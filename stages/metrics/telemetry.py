"""Metrics of the run itself: the learning rate, the iteration speed, and readings of the machine."""

import math
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Self

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

    is_equal_on_ranks = True
    """The value is that of rank 0, and not a sum over the ranks."""

    reads_output = False

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
    reads_output = False
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


@dataclass(frozen=True, slots=True)
class WaitShare:
    """The share of a time that was spent waiting, stored as both times in seconds so that it adds."""

    has_batch_value: ClassVar[bool] = False
    waited: float
    elapsed: float
    count: ClassVar[int] = 1
    """1: the time is measured as a whole."""

    def __add__(self, other: Self, /) -> Self:
        return type(self)(self.waited + other.waited, self.elapsed + other.elapsed)

    @property
    def value(self) -> float:
        """The share in percent; 0 if no time has elapsed."""
        return 100.0 * self.waited / self.elapsed if self.elapsed else 0.0


class DataWaitMetric:
    """The time that the loop waited for data, in percent of the time of the pass.

    A pass lasts from before its loader is opened, which may start workers, until the loader has reported its
    end. The loop waits while it opens the loader and while it requests a batch, also if the loader prepares
    the batch in this process. On a CPU nothing is computed in that time. On an accelerator the metric is an
    upper bound of the time that the device is idle for lack of data, because a wait counts even if the device
    is still computing steps that were launched before. Log lines and checkpoints are not waits.
    """

    name = "Data Wait"
    unit = "%"
    telemetry = True
    better = Direction.LOWEST

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waits = _Waits(start=clock())

    def begin(self) -> None:
        """Start the time of a pass."""
        self._waits = _Waits(start=self._clock())

    def watch(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Return an iterator over *batches* that measures how long each takes to arrive."""
        watched = _WatchedBatches(iter(batches), self._waits, self._clock)
        self._waits.waited = self._clock() - self._waits.start
        return watched

    def read(self) -> WaitShare:
        """Return the share of the time until now, or until the end of the pass."""
        waits = self._waits
        end = self._clock() if waits.end is None else waits.end
        return WaitShare(waits.waited, end - waits.start)


@dataclass(slots=True)
class _Waits:
    """The times of one pass, in seconds. It does not refer to the batches, so that they can be freed."""

    start: float
    waited: float = 0.0
    end: float | None = None


@dataclass(slots=True, eq=False)
class _WatchedBatches:
    """An iterator over *batches* that adds the time of each request to *waits*."""

    batches: Iterator[Any]
    waits: _Waits
    clock: Callable[[], float]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        waits, start = self.waits, self.clock()
        try:
            batch = next(self.batches)
        except StopIteration:
            waits.end = self.clock()
            waits.waited += waits.end - start
            raise
        waits.waited += self.clock() - start
        return batch


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest of several numbers of bytes; 0 if it is unknown."""

    has_batch_value: ClassVar[bool] = False
    nbytes: int
    count: ClassVar[int] = 1
    """1: the peak is measured as a whole."""

    def __add__(self, other: Self, /) -> Self:
        return type(self)(max(self.nbytes, other.nbytes))

    @property
    def value(self) -> float:
        """The number in units of 10⁹ bytes; NaN if it is unknown."""
        return self.nbytes / 1e9 if self.nbytes else float("nan")


class PeakMemoryMetric:
    """The peak of the memory that torch has reserved on accelerators for this process, in units of 10⁹ bytes.

    It includes the memory of CUDA graphs, in which torch counts no tensors, and free memory that torch keeps.
    It is the peak since the start of the pass, at which the peak of torch is reset to what is reserved. The
    peaks of several accelerators are added. The accelerators of this process are those on which it has
    reserved memory.
    Without one, as on a CPU, the metric is the peak of the resident memory of this process since the
    process started, because operating systems do not reset it; worker processes are not included. It is NaN
    on ``mps``, which records no peak.
    """

    name = "Peak Memory"
    unit = "GB"
    telemetry = True
    better = Direction.LOWEST

    def begin(self) -> None:
        """Reset the peaks of the accelerators."""
        for index in _find_accelerators():
            torch.accelerator.reset_peak_memory_stats(index)

    def read(self) -> Peak:
        """Return the peak since the start of the pass."""
        if accelerators := _find_accelerators():
            return Peak(sum(map(torch.accelerator.max_memory_reserved, accelerators)))
        return Peak(0 if _uses_mps() else _read_process_peak())


class Gauge:
    """The mean over steps of a reading that is refreshed at most every 200 ms.

    A reading that this machine cannot provide is NaN and has no weight.

    Args:
        clock: returns the time in seconds.
    """

    telemetry = True
    reads_output = False

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
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

    def _read(self) -> float:
        """Return the current reading."""
        raise NotImplementedError


class CpuUse(Gauge):
    """The utilization of all cores together since the previous reading, in percent."""

    name = "CPU Usage"
    unit = "%"

    def __init__(self) -> None:
        super().__init__()
        psutil.cpu_percent()

    def _read(self) -> float:
        return float(psutil.cpu_percent())


class CpuTemperature(Gauge):
    """The mean temperature over the processor's sensors, in °C; NaN without sensors."""

    name = "CPU Temperature"
    unit = "°C"

    def _read(self) -> float:
        sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
        readings = [[sensor.current for sensor in sensors.get(name, ())] for name in PROCESSOR_SENSORS]
        return next((fmean(temperatures) for temperatures in readings if temperatures), float("nan"))


class CpuMemory(Gauge):
    """The memory that all programs use, in units of 10⁹ bytes."""

    name = "CPU Memory"
    unit = "GB"

    def _read(self) -> float:
        return float(psutil.virtual_memory().used) / 1e9


class CudaMetric(Gauge):
    """The memory that all programs use on the GPUs of this process, summed, in units of 10⁹ bytes.

    The GPUs of this process are those on which it has reserved memory; NaN without one. Other GPUs are
    not queried, because a query takes some of their memory. Burn's metric is text and covers every GPU.
    """

    name = "Cuda"
    unit = "GB"

    def _read(self) -> float:
        gpus = _find_gpus()
        free_and_total = [torch.cuda.mem_get_info(index) for index in gpus]
        return sum(total - free for free, total in free_and_total) / 1e9 if gpus else float("nan")


class UtilizationMetric(Gauge):
    """The utilization of the GPUs of this process, as their mean, in percent.

    NVIDIA's driver reports the share of its last sample period, of 1/6 to 1 second, in which a kernel ran; so
    a high value does not mean that a GPU computes as fast as it can. The GPUs of this process are those on
    which it has reserved memory. It is NaN on a CPU, and without the extra ``nvidia``, which
    installs nvidia-ml-py. For a CPU see `CpuUse`.
    """

    name = "Utilization"
    unit = "%"

    def _read(self) -> float:
        gpus = _find_gpus()
        try:
            return fmean(map(torch.cuda.utilization, gpus)) if gpus else float("nan")
        except Exception:  # noqa: BLE001  the library of the driver has error classes of its own
            return float("nan")


def _find_accelerators() -> list[int]:
    """Return the indices of the accelerators on which this process has reserved memory, except ``mps``."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type == "mps":
        return []
    return [
        index for index in range(torch.accelerator.device_count()) if torch.accelerator.memory_reserved(index)
    ]


def _find_gpus() -> list[int]:
    """Return the indices of the CUDA devices on which this process has reserved memory."""
    return [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)]


def _uses_mps() -> bool:
    return torch.backends.mps.is_available() and torch.mps.current_allocated_memory() > 0


def _read_process_peak() -> int:
    """Return the peak of the resident memory of this process in bytes; 0 if it is unknown.

    On Linux the peak of `getrusage` is not used: it includes that of the program that started this one.
    """
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
