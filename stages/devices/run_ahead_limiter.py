"""A limit on the number of steps that the host launches before the accelerator has finished them."""

import time
from collections import deque
from collections.abc import Callable

import torch

MAX_STEPS_AHEAD = 8
MAX_SECONDS_AHEAD = 2.0
"""The most work ahead: a signal, a heartbeat and a measured speed are at most this late."""
MAX_GROUP = 4
MAX_GROUP_SECONDS = 0.002
"""The duration of a step below which `MAX_GROUP` steps have one mark."""


class RunAheadLimiter:
    """Waits after a step until the device is at most 8 steps behind, or fewer if steps are long.

    Short steps are marked in groups, because a mark costs the host as much as a launch.
    """

    def __init__(
        self, new_event: Callable[[], torch.Event], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._new_event = new_event
        self._clock = clock
        self._events: deque[tuple[torch.Event, int]] = deque()
        """The marks that were not waited for, each with its number of steps."""
        self._unmarked = 0
        self._limit = self._group = 1
        self._last_seconds = clock()

    @classmethod
    def of(cls, device: torch.device) -> "RunAheadLimiter | None":
        """Return the limiter of *device*; None for a CPU, which is never behind."""
        if device.type in {"cpu", "meta"}:
            return None
        return cls(lambda: torch.Event(device.type))

    def step(self) -> None:
        """Mark the end of a step, and wait for the oldest one if too many are in progress."""
        self._unmarked += 1
        if self._unmarked < self._group:
            return
        event = self._new_event()
        event.record()
        self._events.append((event, self._unmarked))
        self._unmarked = 0
        # the next group is not marked at once
        while sum(steps for _, steps in self._events) > self._limit - self._group + 1:
            event, steps = self._events.popleft()
            event.synchronize()
            self._adapt(steps)

    def _adapt(self, steps: int) -> None:
        """Set the limit and the size of a group by the time that the last *steps* steps took."""
        now = self._clock()
        seconds, self._last_seconds = (now - self._last_seconds) / steps, now
        self._limit = MAX_STEPS_AHEAD if seconds <= 0 else int(MAX_SECONDS_AHEAD / seconds)
        self._limit = min(max(self._limit, 1), MAX_STEPS_AHEAD)
        self._group = MAX_GROUP if seconds < MAX_GROUP_SECONDS else 1
