"""How fast the loop turns."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from stages.contracts.events import Step
from stages.contracts.history import Direction


@dataclass(frozen=True, slots=True)
class Speed:
    """Iterations over the time they took; adding two is the speed over both."""

    timed: int
    """How many iterations the time is of: none in the first step of an epoch, which has no step before it."""
    seconds: float
    count: int
    """How many steps."""

    def __add__(self, other: Self, /) -> Self:
        return type(self)(self.timed + other.timed, self.seconds + other.seconds, self.count + other.count)

    @property
    def value(self) -> float:
        """Iterations in a second; 0 before the second one, as in Burn."""
        return self.timed / self.seconds if self.seconds else 0.0


class IterationSpeedMetric:
    """Iterations in a second: of a step since the one before it, of an epoch from its first step to its last.

    Burn divides the iterations so far by the time so far, at each step; that is what these add up to.
    """

    name = "Iteration Speed"
    unit = "iter/sec"
    telemetry = True
    better = Direction.HIGHEST

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._expected: tuple[int, int] | None = None
        self._before = 0.0

    def measure_step(self, step: Step) -> Speed:
        """Of one step."""
        now, before = self._clock(), self._before
        follows = (step.epoch, step.iteration) == self._expected
        self._expected, self._before = (step.epoch, step.iteration + 1), now
        return Speed(1, now - before, 1) if follows else Speed(0, 0.0, 1)
