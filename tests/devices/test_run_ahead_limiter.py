"""The host is at most eight steps ahead of the device, and at most one if steps take seconds."""

import pytest
import torch

from stages.devices.run_ahead_limiter import RunAheadLimiter


class Device:
    """A device whose steps take *seconds* each, with a clock that only waiting advances."""

    def __init__(self, seconds):
        self.seconds, self.now, self.launched, self.finished = seconds, 0.0, 0, 0

    def new_event(self):
        return EventOf(self)


class EventOf:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.device.launched += 1
        self.number = self.device.launched

    def synchronize(self):
        device = self.device
        device.now += max(0, self.number - device.finished) * device.seconds
        device.finished = max(device.finished, self.number)


@pytest.mark.parametrize(("seconds", "ahead"), [(0.001, 8), (0.25, 8), (0.5, 4), (2.0, 1), (30.0, 1)])
def test_host_is_ahead_by_eight_steps_or_two_seconds(seconds, ahead):
    device = Device(seconds)
    limiter = RunAheadLimiter(device.new_event, lambda: device.now)

    for _ in range(40):
        limiter.step()

    assert device.launched - device.finished == ahead


def test_cpu_has_no_limiter():
    assert RunAheadLimiter.of(torch.device("cpu")) is None
