"""A reading of the machine that is not worth taking at every step."""

import math
import time
from collections.abc import Callable

from stages.contracts.events import Step
from stages.metrics.mean import Mean

REFRESH_SECONDS = 0.2
"""As in Burn."""


class Gauge:
    """The mean over steps of a reading that is taken anew at most every 200 ms.

    A reading that this machine cannot give is NaN; it counts for nothing.
    """

    telemetry = True

    def __init__(self, read: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._due = -math.inf
        self._latest = Mean(0.0, 0)

    def measure_step(self, step: Step) -> Mean:  # noqa: ARG002 - the machine knows no steps
        """The latest reading."""
        now = self._clock()
        if now >= self._due:
            self._due = now + REFRESH_SECONDS
            reading = self._read()
            self._latest = Mean(0.0, 0) if math.isnan(reading) else Mean(reading, 1)
        return self._latest
