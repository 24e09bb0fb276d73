"""How far a schedule has come: what the loop asks for the rate of each batch."""

import math
from typing import Any, Protocol

from stages.contracts.errors import CheckpointError, ParamsError
from stages.optim.schedules import Constant, Schedule


class LrScheduler(Protocol):
    """What gives the learning rate of each batch. Burn's `LrScheduler`.

    One with an attribute ``drives_groups`` that is true sets the rates of the optimizer's groups itself. One
    with an attribute ``monitored``, a split and a metric, gets the epoch values of that metric.
    """

    def step(self) -> float:
        """The rate of the next batch."""

    def end_epoch(self, metric: float | None = None) -> None:
        """End an epoch whose validation loss, or other monitored metric, is *metric*; None if unmeasured."""

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from *state*."""


class Scheduler:
    """A schedule and its iteration: a batch, or an epoch where the schedule says so. It never starts again.

    Raises `ParamsError` for a rate that is not above 0, and for what the schedule cannot do with it.
    """

    def __init__(self, initial: float, schedule: Schedule | None = None) -> None:
        check_rate(initial)
        self.initial = initial
        self.schedule = schedule or Constant()
        self.iteration = 0
        self._per_epoch = getattr(self.schedule, "per", "batch") == "epoch"
        if hasattr(self.schedule, "check"):
            self.schedule.check(initial)

    def step(self) -> float:
        """Return the rate of this batch; the next call is the next batch.

        Raises `ParamsError` if the schedule's rate is not finite.
        """
        rate = self.schedule.rate(self.initial, self.iteration)
        if not math.isfinite(rate):
            raise ParamsError(
                f"the {type(self.schedule).__name__} schedule gives a learning rate of {rate} at iteration "
                f"{self.iteration}. Lower its rates or factors (build_learner.schedule in params.yaml)"
            )
        if not self._per_epoch:
            self.iteration += 1
        return rate

    def end_epoch(self, metric: float | None = None) -> None:  # noqa: ARG002  the protocol's
        """The next iteration, where an iteration is an epoch."""
        if self._per_epoch:
            self.iteration += 1

    def burn_state(self) -> Any:
        """What Burn's scheduler of this kind saves at this point; for a user's schedule, the iteration."""
        if hasattr(self.schedule, "burn_state"):
            return self.schedule.burn_state(self.initial, self.iteration)
        return self.iteration

    def state_dict(self) -> dict[str, Any]:
        """How far it has come."""
        return {"iteration": self.iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the ``iteration`` in *state*. Raises `CheckpointError` where there is none."""
        if not isinstance(state.get("iteration"), int):
            raise CheckpointError(f"a scheduler's state has an 'iteration', this one is {state}")
        self.iteration = state["iteration"]


def check_rate(rate: float) -> None:
    """Raise `ParamsError` unless *rate* is a finite number above 0."""
    if not 0 < rate < math.inf:
        raise ParamsError(f"the learning rate is {rate}: give one above 0, as in 1e-3")
