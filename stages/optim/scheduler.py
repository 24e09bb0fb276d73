"""Learning rate schedulers: a schedule with its current iteration."""

import math
from typing import Any, Protocol

from stages.contracts.errors import CheckpointError, ParamsError
from stages.optim.schedules import Constant, Rule, Schedule


class LrScheduler(Protocol):
    """A source of the learning rate of each batch. Burn's `LrScheduler`.

    If it has a true attribute ``drives_groups``, it sets the rates of the optimizer's groups itself. If it
    has an attribute ``monitored``, a split and a metric, it receives the epoch values of that metric.
    """

    def step(self) -> float:
        """Return the learning rate of the next batch."""

    def end_epoch(self, metric: float | None = None) -> None:
        """End an epoch whose validation loss or other monitored metric is *metric*; None if not measured."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from *state*."""


class Scheduler:
    """A schedule with its current iteration, which counts batches, or epochs if the schedule is per epoch.

    Raises `ParamsError` if the initial rate is not above 0 or the schedule does not support it.
    """

    def __init__(self, initial: float, schedule: Schedule | None = None) -> None:
        check_rate(initial)
        self.initial = initial
        self.schedule = schedule or Constant()
        self.iteration = 0
        self._per_epoch = isinstance(self.schedule, Rule) and self.schedule.per == "epoch"
        if isinstance(self.schedule, Rule):
            self.schedule.check(initial)

    def step(self) -> float:
        """Return the rate of the current batch and advance to the next one.

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

    def end_epoch(self, metric: float | None = None) -> None:  # noqa: ARG002  required by the protocol
        """Advance to the next iteration if an iteration is an epoch."""
        if self._per_epoch:
            self.iteration += 1

    def __str__(self) -> str:
        """Return the kind of the schedule and the unit of an iteration."""
        kind = getattr(self.schedule, "kind", type(self.schedule).__name__)
        unit = "epoch" if self._per_epoch else "batch"
        return kind if isinstance(self.schedule, Constant) else f"{kind}, one step per {unit}"

    def burn_state(self) -> Any:
        """Return the state that Burn's scheduler would save, or the iteration for a user's schedule."""
        if isinstance(self.schedule, Rule):
            return self.schedule.burn_state(self.initial, self.iteration)
        return self.iteration

    def state_dict(self) -> dict[str, Any]:
        """Return the iteration."""
        return {"iteration": self.iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the ``iteration`` in *state*. Raises `CheckpointError` if it is missing."""
        if not isinstance(state.get("iteration"), int):
            raise CheckpointError(
                f"the state of a scheduler has an integer 'iteration'; found {state}. "
                "Use a checkpoint of this version"
            )
        self.iteration = state["iteration"]


def check_rate(rate: float) -> None:
    """Raise `ParamsError` unless *rate* is a finite number above 0."""
    if not 0 < rate < math.inf:
        raise ParamsError(
            f"the learning rate must be finite and above 0; found {rate}. Set, for example, 1e-3"
        )
