"""Metrics of the run itself: the learning rate, the clock and the machine."""

import math

import pytest
import torch

from stages.contracts.events import Step
from stages.contracts.history import Split
from stages.metrics import (
    CpuMemory,
    CpuTemperature,
    CpuUse,
    CudaMetric,
    IterationSpeedMetric,
    LearningRateMetric,
)
from stages.metrics.telemetry import Gauge


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


def test_gauge_is_read_at_most_every_200_ms():
    gauge = Gauge(iter([5.0, 7.0]).__next__, clock(0.0, 0.1, 0.19, 0.21))

    assert [gauge.measure_step(step(1)).value for _ in range(4)] == [5.0, 5.0, 5.0, 7.0]


def test_unavailable_reading_is_nan_without_weight():
    gauge = Gauge(iter([math.nan, 7.0]).__next__, clock(0.0, 1.0))

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
def test_gpu_memory_includes_own_tensors():
    tensor = torch.ones(2**28, device="cuda")

    assert CudaMetric().measure_step(step(1)).value > tensor.nbytes / 1e9
