"""Learning rates: a schedule is a pure function from the iteration to the rate; a scheduler counts.

The formulas are Burn's. An iteration is one batch, from 0, and never starts again.
"""

import math
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, NonNegativeFloat, PositiveInt

from stages.contracts.config import Config
from stages.contracts.errors import CheckpointError


class Schedule(Protocol):
    """A rule for the learning rate."""

    def rate(self, initial: float, iteration: int) -> float:
        """The rate of *iteration*, from 0, where *initial* is the optimizer's own."""


class Constant(Config):
    """The same rate throughout."""

    kind: Literal["constant"] = "constant"

    def rate(self, initial: float, iteration: int) -> float:  # noqa: ARG002  the protocol's
        """*initial*."""
        return initial


class Linear(Config):
    """From the initial rate to ``final`` in ``num_iters`` iterations, then ``final``."""

    kind: Literal["linear"]
    final: NonNegativeFloat
    num_iters: PositiveInt

    def rate(self, initial: float, iteration: int) -> float:
        """``final - (final - initial) / n · (n - i)``, and ``final`` from i = n on."""
        remaining = max(self.num_iters - iteration, 0)
        return self.final - (self.final - initial) / self.num_iters * remaining


class Cosine(Config):
    """From the initial rate to ``min`` along half a cosine in ``num_iters`` iterations, then again."""

    kind: Literal["cosine"]
    min: NonNegativeFloat = 0.0
    num_iters: PositiveInt

    def rate(self, initial: float, iteration: int) -> float:
        """``min + ½ (initial - min) (1 + cos(π k / n))`` with k = i mod (n + 1)."""
        k = iteration % (self.num_iters + 1)
        return self.min + 0.5 * (initial - self.min) * (1 + math.cos(math.pi * k / self.num_iters))


ScheduleConfig = Annotated[Constant | Linear | Cosine, Field(discriminator="kind")]


class Scheduler:
    """A schedule and how far it has come."""

    def __init__(self, initial: float, schedule: Schedule | None = None) -> None:
        self.initial = initial
        self.schedule = schedule or Constant()
        self.iteration = 0

    def step(self) -> float:
        """The rate of this iteration; the next call is the next iteration."""
        rate = self.schedule.rate(self.initial, self.iteration)
        self.iteration += 1
        return rate

    def state_dict(self) -> dict[str, Any]:
        """How far it has come."""
        return {"iteration": self.iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from *state*."""
        if not isinstance(state.get("iteration"), int):
            raise CheckpointError(f"a scheduler's state has an 'iteration', this one is {state}")
        self.iteration = state["iteration"]
