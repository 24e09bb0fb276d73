"""A limit on the number of steps that the host launches before the accelerator has finished them."""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch

MAX_STEPS_AHEAD = 8
MAX_SECONDS_AHEAD = 2.0
"""The most work ahead: a signal, a heartbeat and a measured speed are at most this late."""


class Event(Protocol):
    """A point in the work of a device, such as `torch.Event`."""

    def record(self) -> None:
        """Set the point after the work that was launched until now."""

    def synchronize(self) -> None:
        """Wait until the device has reached the point."""


class RunAheadLimiter:
    """Waits after each step until the device is at most 8 steps behind, or fewer if steps are long."""

    def __init__(self, new_event: Callable[[], Event], clock: Callable[[], float] = time.monotonic) -> None:
        self._new_event = new_event
        self._clock = clock
        self._events: deque[Event] = deque()
        self._limit = 1
        self._last_seconds = clock()

    @classmethod
    def of(cls, device: torch.device) -> "RunAheadLimiter | None":
        """Return the limiter of *device*; None for a CPU, which is never behind."""
        if device.type in {"cpu", "meta"}:
            return None
        return cls(lambda: torch.Event(device.type))

    def step(self) -> None:
        """Mark the end of a step, and wait for the oldest one if too many are in progress."""
        event = self._new_event()
        event.record()
        self._events.append(event)
        while len(self._events) > self._limit:
            self._events.popleft().synchronize()
            self._adapt()

    def _adapt(self) -> None:
        """Set the limit by the time since the last step that the device finished."""
        now = self._clock()
        seconds, self._last_seconds = now - self._last_seconds, now
        self._limit = MAX_STEPS_AHEAD if seconds <= 0 else int(MAX_SECONDS_AHEAD / seconds)
        self._limit = min(max(self._limit, 1), MAX_STEPS_AHEAD)
