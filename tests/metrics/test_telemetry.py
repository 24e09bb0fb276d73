"""Metrics of the run itself: the learning rate, the clock and the machine."""

import gc
import math
import weakref

import psutil
import pytest
import torch

from stages.contracts.events import Step
from stages.contracts.history import Split
from stages.metrics import (
    CpuMemory,
    CpuTemperature,
    CpuUse,
    CudaMetric,
    DataWaitMetric,
    IterationSpeedMetric,
    LearningRateMetric,
    PeakMemoryMetric,
    UtilizationMetric,
)
from stages.metrics.telemetry import Gauge, Peak


def step(iteration, *, epoch=1, rate=0.1):
    return Step(None, Split.TRAIN, epoch, iteration, rate)


def clock(*times):
    """Return a clock that shows one of *times* at each call."""
    return iter(times).__next__


def test_learning_rate_of_epoch_is_mean_of_steps():
    measured = [LearningRateMetric().measure_step(step(1, rate=rate)) for rate in (0.1, 0.3)]

    assert measured[0].value == 0.1
    assert (measured[0] + measured[1]).value == pytest.approx(0.2)


def test_first_step_has_no_speed_and_epoch_covers_all_steps():
    metric = IterationSpeedMetric(clock=clock(10.0, 10.5, 12.0))

    first, second, third = (metric.measure_step(step(iteration)) for iteration in (1, 2, 3))

    assert [first.value, second.value, third.value] == [0.0, 2.0, pytest.approx(1 / 1.5)]
    assert (first + second + third).value == 1.0
    assert (first + second + third).count == 3


def test_time_between_epochs_is_not_counted():
    metric = IterationSpeedMetric(clock=clock(0.0, 1.0, 1000.0, 1001.0))

    speeds = [metric.measure_step(step(i, epoch=epoch)).value for epoch in (1, 2) for i in (1, 2)]

    assert speeds == [0.0, 1.0, 0.0, 1.0]


def test_first_step_after_resume_has_no_speed():
    assert IterationSpeedMetric().measure_step(step(51)).value == 0.0


class ManualClock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class SlowLoader:
    """Takes *opening* seconds of *clock* to open, and *seconds* for each of *count* batches."""

    def __init__(self, clock, count, seconds, opening=0.0):
        self.clock, self.count, self.seconds, self.opening = clock, count, seconds, opening

    def __iter__(self):
        self.clock.now += self.opening
        return self.batches()

    def batches(self):
        for number in range(self.count):
            self.clock.now += self.seconds
            yield number


def run_pass(metric, clock, loader, step_seconds):
    metric.begin()
    for _ in metric.watch(loader):
        clock.now += step_seconds


def test_data_wait_is_the_share_of_the_pass_in_which_the_loop_waits_for_batches():
    clock = ManualClock()
    metric = DataWaitMetric(clock=clock)

    run_pass(metric, clock, SlowLoader(clock, count=4, seconds=1.0), step_seconds=3.0)

    assert metric.read().value == 25.0


def test_time_to_open_the_loader_is_waited_for():
    clock = ManualClock()
    metric = DataWaitMetric(clock=clock)

    run_pass(metric, clock, SlowLoader(clock, count=2, seconds=0.0, opening=6.0), step_seconds=1.0)

    assert metric.read().value == 75.0


def test_data_wait_of_a_pass_in_progress_covers_the_time_until_now():
    clock = ManualClock()
    metric = DataWaitMetric(clock=clock)
    metric.begin()
    next(metric.watch(SlowLoader(clock, count=4, seconds=1.0)))

    clock.now += 1.0

    assert metric.read().value == 50.0


def test_data_wait_covers_no_time_between_passes():
    clock = ManualClock()
    metric = DataWaitMetric(clock=clock)
    run_pass(metric, clock, SlowLoader(clock, count=1, seconds=1.0), step_seconds=1.0)
    clock.now += 1000.0
    ended = metric.read()

    run_pass(metric, clock, SlowLoader(clock, count=1, seconds=3.0), step_seconds=1.0)

    assert [ended.value, metric.read().value] == [50.0, 75.0]
    assert (ended + metric.read()).value == pytest.approx(100 * 4 / 6)


def test_data_wait_of_no_time_is_0():
    metric = DataWaitMetric(clock=ManualClock())
    metric.begin()

    assert metric.read().value == 0.0


def test_watched_batches_are_not_kept_after_a_pass_is_left():
    """A loader may stop its threads and processes when its iterator is freed."""
    metric = DataWaitMetric()
    metric.begin()
    batches = SlowLoader(ManualClock(), count=4, seconds=1.0).batches()
    freed = weakref.ref(batches)
    watched = metric.watch(batches)
    next(watched)

    del batches, watched
    gc.collect()

    assert freed() is None


class Accelerators:
    """Accelerators of which those in *reserved* have reserved memory, and the peaks since the last reset."""

    def __init__(self, monkeypatch, kind, reserved):
        self.reserved, self.peaks = reserved, dict.fromkeys(reserved, 0)
        accelerator = torch.device(kind)
        replacements = {
            "current_accelerator": lambda check_available: accelerator,
            "device_count": lambda: 4,
            "memory_reserved": lambda index: 10**9 * (index in self.reserved),
            "max_memory_reserved": lambda index: self.peaks[index],
            "max_memory_allocated": lambda index: 0,  # in a CUDA graph
            "reset_peak_memory_stats": lambda index: self.peaks.update({index: 0}),
        }
        for name, replacement in replacements.items():
            monkeypatch.setattr(torch.accelerator, name, replacement)


def test_peak_memory_is_that_of_all_accelerators_in_use_since_the_start_of_the_pass(monkeypatch):
    accelerators = Accelerators(monkeypatch, "cuda", reserved=[1, 3])
    accelerators.peaks = {1: 9 * 10**9, 3: 9 * 10**9}
    metric = PeakMemoryMetric()

    metric.begin()
    accelerators.peaks = {1: 2 * 10**9, 3: 10**9}
    first = metric.read()
    metric.begin()

    assert first.value == 3.0
    assert math.isnan(metric.read().value)
    assert (first + metric.read()).value == 3.0


def test_peak_memory_without_an_accelerator_in_use_is_the_resident_memory_of_the_process():
    metric = PeakMemoryMetric()
    metric.begin()

    assert psutil.Process().memory_info().rss / 2e9 < metric.read().value < 1e5


def test_peak_memory_is_nan_on_a_device_that_records_none(monkeypatch):
    Accelerators(monkeypatch, "mps", reserved=[0])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 10**9)
    metric = PeakMemoryMetric()

    metric.begin()

    assert metric.read() == Peak(0)
    assert math.isnan(metric.read().value)


def raise_missing(index):
    raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")


@pytest.mark.parametrize(
    ("gpus", "utilization", "expected"),
    [
        ([], raise_missing, math.nan),
        ([0, 2], raise_missing, math.nan),
        ([0, 2], {0: 50, 2: 100}.get, 75.0),
    ],
)
def test_utilization_is_the_mean_of_the_gpus_in_use_or_nan(gpus, utilization, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: int(index in gpus))
    monkeypatch.setattr(torch.cuda, "utilization", utilization)

    assert UtilizationMetric().measure_step(step(1)).value == pytest.approx(expected, nan_ok=True)


class Readings(Gauge):
    def __init__(self, readings, *times):
        super().__init__(clock=clock(*times))
        self._read = iter(readings).__next__


def test_gauge_is_read_at_most_every_200_ms():
    gauge = Readings([5.0, 7.0], 0.0, 0.1, 0.19, 0.21)

    assert [gauge.measure_step(step(1)).value for _ in range(4)] == [5.0, 5.0, 5.0, 7.0]


def test_unavailable_reading_is_nan_without_weight():
    gauge = Readings([math.nan, 7.0], 0.0, 1.0)

    missing, read = gauge.measure_step(step(1)), gauge.measure_step(step(2))

    assert math.isnan(missing.value)
    assert (missing + read).value == 7.0


def test_machine_readings_are_plausible():
    assert 0 <= CpuUse().measure_step(step(1)).value <= 100
    assert 0.01 < CpuMemory().measure_step(step(1)).value < 1e5
    temperature = CpuTemperature().measure_step(step(1)).value
    assert math.isnan(temperature) or 0 < temperature < 150


def test_gpu_memory_is_nan_without_reserved_memory():
    value = CudaMetric().measure_step(step(1)).value

    assert math.isnan(value)


@pytest.mark.gpu
def test_peak_memory_includes_tensors_that_were_freed_since_the_start_of_the_pass():
    kept, metric = torch.ones(1, device="cuda"), PeakMemoryMetric()
    metric.begin()
    nbytes = torch.ones(2**28, device="cuda").nbytes
    first = metric.read()
    torch.cuda.empty_cache()
    metric.begin()

    assert first.value > nbytes / 1e9 > metric.read().value > kept.nbytes / 1e9


@pytest.mark.gpu
def test_gpu_memory_includes_own_tensors():
    tensor = torch.ones(2**28, device="cuda")

    assert CudaMetric().measure_step(step(1)).value > tensor.nbytes / 1e9
