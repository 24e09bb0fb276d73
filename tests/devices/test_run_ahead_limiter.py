"""The host is at most eight steps ahead of the device, and at most one if steps take seconds."""

import pytest
import torch

from stages.devices.run_ahead_limiter import RunAheadLimiter


class Device:
    """A device whose steps take *seconds* each, with a clock that only waiting advances."""

    def __init__(self, seconds):
        self.seconds, self.now, self.launched, self.finished, self.marks = seconds, 0.0, 0, 0, 0

    def new_event(self):
        return EventOf(self)


class EventOf:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.device.marks += 1
        self.number = self.device.launched

    def synchronize(self):
        device = self.device
        device.now += max(0, self.number - device.finished) * device.seconds
        device.finished = max(device.finished, self.number)


@pytest.mark.parametrize(
    ("seconds", "ahead"), [(1e-4, 8), (0.001, 8), (0.01, 8), (0.25, 8), (0.5, 4), (2.0, 1), (30.0, 1)]
)
def test_host_is_ahead_by_eight_steps_or_two_seconds(seconds, ahead):
    device, most = Device(seconds), 0
    limiter = RunAheadLimiter(device.new_event, lambda: device.now)

    for _ in range(40):
        device.launched += 1
        most = max(most, device.launched - device.finished)
        limiter.step()

    assert most == ahead + 1, "a step is launched before the limiter waits for another"
    assert device.marks == (40 if seconds >= 0.002 else pytest.approx(40 / 4, abs=3))


def test_cpu_has_no_limiter():
    assert RunAheadLimiter.of(torch.device("cpu")) is None
