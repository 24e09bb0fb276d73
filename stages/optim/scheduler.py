"""Learning rate schedulers: schedules with their iteration, also by group, and the rate of an optimizer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Protocol

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stages.contracts.burn import ScheduleState, Version
from stages.contracts.errors import BuilderError, CheckpointError, ParamsError
from stages.contracts.user_code import place_of
from stages.optim.run_length import Per, RunLength, unit_of
from stages.optim.schedules import (
    Constant,
    Rule,
    Schedule,
    ScheduleUse,
    with_restarts,
)
from stages.optim.torch_scheduler import TorchScheduler, build_torch_scheduler

RATES_PER_BLOCK = 64
"""The rates of a built-in rule that are computed at a time."""


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

    A schedule with spans, such as ``"10 %"`` of the run, needs `set_length` before its first step; a Learner
    calls it. Raises `ParamsError` if the initial rate is not above 0 or the schedule does not support it.
    """

    def __init__(self, initial: float, schedule: Schedule | None = None) -> None:
        check_rate(initial)
        self.initial = initial
        self.schedule = schedule or Constant()
        self.iteration = 0
        self._rule = self.schedule if isinstance(self.schedule, Rule) else None
        self.per: Per = "batch" if self._rule is None else self._rule.per
        self.steps_per_update = self.per == "update"
        """True if a step is an update of the model, not a batch."""
        self._steps: int | None = None
        """The steps of the run, if the schedule depends on them and they are known."""
        self._is_resolved = self._rule is None or not self._rule.spans
        self._rates: dict[int, float] = {}
        """The rates of the next iterations, computed together."""
        if self._rule is not None:
            self._rule.check(initial)

    def follow(self, version: Version, *, accumulates: bool) -> None:
        """Follow a *version* of Burn: up to 0.21 a cosine restarts; `unit_of` states what a step is."""
        if version == "0.21" and self._rule is not None:
            self.schedule = self._rule = with_restarts(self._rule)
            self._rates = {}
        self.steps_per_update = unit_of(self.per, version, accumulates=accumulates) == "update"

    def set_length(self, length: RunLength) -> None:
        """Set the length of the run.

        Raises `ParamsError` if a span of the schedule is longer than the run, and `BuilderError` if the
        schedule is resumed with another length than the one it started with.
        """
        if self._rule is None or not self._rule.spans:
            return
        unit: Per = "update" if self.steps_per_update else self.per
        is_share = any(span.endswith("%") for span in self._rule.spans)
        counted = length if is_share else replace(length, epochs=1)
        resolved, steps = self._rule.resolve(length, per=unit), counted.count(unit)
        if self._steps not in (None, steps):
            raise BuilderError(
                f"the schedule is a share of {'the run' if is_share else 'an epoch'}, which had "
                f"{self._steps} steps, one per {unit}, and now has {steps}: that is another run. Train for "
                "the same epochs of the same batches, or start in another directory"
            )
        self.schedule, self._steps, self._is_resolved = resolved, steps, True
        self._rates = {}

    @property
    def latest(self) -> float:
        """The rate of the last step."""
        return self._rate(max(self.iteration - 1, 0))

    @property
    def counts_updates(self) -> bool:
        """True if a batch that continues an accumulation window is not a step of its own."""
        return self.steps_per_update

    def continue_window(self) -> float:
        """Return the rate of a batch that continues an accumulation window."""
        return self.latest if self.steps_per_update else self.step()

    def step(self) -> float:
        """Return the rate of the current batch and advance to the next one.

        Raises `ParamsError` if the schedule's rate is not finite, and `BuilderError` if it needs the length
        of the run and does not have it.
        """
        rate = self._rates.get(self.iteration)
        if rate is None:
            rate = self._compute_rates(self.iteration)
        if self.per != "epoch":
            self.iteration += 1
        return rate

    def _compute_rates(self, first: int) -> float:
        """Return the rate of the iteration *first*, and store those of a block if the rule is built in."""
        rate = self._rate(first)
        if not math.isfinite(rate):
            raise ParamsError(
                f"the {type(self.schedule).__name__} schedule gives a learning rate of {rate} at iteration "
                f"{first}. Lower its rates or factors (build_learner.schedule in params.yaml)"
            )
        block = range(first, first + RATES_PER_BLOCK)
        if self._is_constant:
            self._rates = dict.fromkeys(block, rate)
        elif self._rule is not None:
            self._rates = {n: later for n in block if math.isfinite(later := self._rate(n))}
        return rate

    @property
    def _is_constant(self) -> bool:
        return type(self.schedule) is Constant and self.schedule.warmup is None

    def _rate(self, iteration: int) -> float:
        if not self._is_resolved:
            raise BuilderError(
                f"the schedule {self} depends on the length of the run, which is unknown: pass a train "
                "loader with a length, call set_length, or state numbers of steps"
            )
        if isinstance(self.schedule, Rule):
            return self.schedule.rate_with_warmup(self.initial, iteration)
        return self.schedule.rate(self.initial, iteration)

    def end_epoch(self, metric: float | None = None) -> None:  # noqa: ARG002  required by the protocol
        """Advance to the next iteration if an iteration is an epoch."""
        if self.per == "epoch":
            self.iteration += 1

    def count_epochs(self, epochs: int) -> None:
        """Set the iteration to the number of finished *epochs*, if an iteration is an epoch."""
        if self.per == "epoch":
            self.iteration = epochs

    def __str__(self) -> str:
        """Return the kind of the schedule and the unit of an iteration."""
        kind = self._rule.name if self._rule else type(self.schedule).__name__
        if self._is_constant:
            return kind
        per = "update" if self.steps_per_update else self.per
        warmup = f", after {self._rule.warmup} of warm-up" if self._rule and self._rule.warmup else ""
        return f"{kind}, one step per {per}{warmup}"

    def burn_state(self) -> Any:
        """Return the state that Burn would save, or the iteration if Burn lacks the schedule."""
        if isinstance(self.schedule, Rule) and self._is_resolved:
            return self.schedule.burn_state(
                self.initial, max(self.iteration - (self.schedule.warmup or 0), 0)
            )
        return self.iteration

    def state_dict(self) -> dict[str, Any]:
        """Return the iteration, and the steps of the run, or of an epoch, if the schedule depends on them."""
        steps = {} if self._steps is None else {"steps": self._steps}
        return {"iteration": self.iteration, **steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the ``iteration`` in *state*. Raises `CheckpointError` if it is missing."""
        if not isinstance(state.get("iteration"), int):
            raise CheckpointError(
                f"the state of a scheduler has an integer 'iteration'; found {state}. "
                "Use a checkpoint of this version"
            )
        self.iteration, self._steps = state["iteration"], state.get("steps")


class GroupScheduler(Scheduler):
    """A scheduler, and those of groups of parameters of *optimizer* that have one of their own.

    *sources* has the scheduler of each group: *base*, or another one. Of several groups with one scheduler,
    those after the first keep the ratio of their rates to its rate. Burn's ``ModuleLrScheduler``.
    """

    drives_groups = True
    """The scheduler sets the rates of the groups."""

    def __init__(self, optimizer: Optimizer, base: Scheduler, sources: Sequence[Scheduler]) -> None:
        super().__init__(base.initial, base.schedule)
        self.own = [source for source in dict.fromkeys(sources) if source is not base]
        """The schedulers of groups, in the order of their groups."""
        self._optimizer = optimizer
        self._sources = [self if source is base else source for source in sources]
        first = {id(self): float(optimizer.param_groups[0]["lr"])}
        self._ratios = []
        for source, group in zip(self._sources, optimizer.param_groups, strict=True):
            rate = float(group["lr"])
            self._ratios.append(rate / first.setdefault(id(source), rate))

    def follow(self, version: Version, *, accumulates: bool) -> None:
        """Follow a *version* of Burn with each scheduler."""
        super().follow(version, accumulates=accumulates)
        for scheduler in self.own:
            scheduler.follow(version, accumulates=accumulates)

    def set_length(self, length: RunLength) -> None:
        """Set the length of the run for each scheduler."""
        super().set_length(length)
        for scheduler in self.own:
            scheduler.set_length(length)

    @property
    def counts_updates(self) -> bool:
        """True if any of the schedulers counts updates."""
        return any(scheduler.steps_per_update for scheduler in (self, *self.own))

    def step(self) -> float:
        """Return the rate of the first group for the current batch, and set those of all groups."""
        return self._set_rates(super().step(), [scheduler.step() for scheduler in self.own])

    def continue_window(self) -> float:
        """Do what `step` does in an accumulation window, in which some of the schedulers keep their rate."""
        first = self.latest if self.steps_per_update else super().step()
        return self._set_rates(first, [scheduler.continue_window() for scheduler in self.own])

    def _set_rates(self, first: float, others: Sequence[float]) -> float:
        rates = {id(self): first} | dict(zip(map(id, self.own), others, strict=True))
        parts = zip(self._optimizer.param_groups, self._sources, self._ratios, strict=True)
        for group, source, ratio in parts:
            group["lr"] = rates[id(source)] * ratio
        return first

    def end_epoch(self, metric: float | None = None) -> None:
        """Advance each scheduler whose iteration is an epoch."""
        super().end_epoch(metric)
        for scheduler in self.own:
            scheduler.end_epoch(metric)

    def count_epochs(self, epochs: int) -> None:
        """Set the iteration of each scheduler to the number of *epochs*, if that is its unit."""
        super().count_epochs(epochs)
        for scheduler in self.own:
            scheduler.count_epochs(epochs)

    def burn_state(self) -> Any:
        """Return the state that Burn 0.22 would save; 0.21 has no schedules of groups."""
        states = [super().burn_state(), *(scheduler.burn_state() for scheduler in self.own)]
        if all(isinstance(state, ScheduleState) for state in states):
            return ScheduleState("Groups", parts=tuple(states))
        return self.iteration

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each scheduler."""
        return {**super().state_dict(), "groups": [scheduler.state_dict() for scheduler in self.own]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from *state*. Raises `CheckpointError` if it is one of other groups."""
        super().load_state_dict(state)
        groups = state.get("groups", [])
        if len(groups) != len(self.own):
            raise CheckpointError(
                f"the checkpoint has schedules of {len(groups)} groups, and the run of {len(self.own)}. Use "
                "the groups of the checkpoint"
            )
        for scheduler, saved in zip(self.own, groups, strict=True):
            scheduler.load_state_dict(saved)


def check_rate(rate: float) -> None:
    """Raise `ParamsError` unless *rate* is a finite number above 0."""
    if not 0 < rate < math.inf:
        raise ParamsError(
            f"the learning rate must be finite and above 0; found {rate}. Set, for example, 1e-3"
        )


def build_step(scheduler: LrScheduler) -> Callable[[], float]:
    """Return the ``step`` of *scheduler*; one of a user raises `BuilderError` for an invalid rate."""
    step = scheduler.step
    if isinstance(scheduler, Scheduler | TorchScheduler | OptimizerRate):
        return step

    def run() -> float:
        rate = step()
        try:
            is_valid = 0 <= rate < math.inf
        except TypeError:
            is_valid = False
        if not is_valid:
            kind = type(scheduler)
            raise BuilderError(
                f"{kind.__name__}.step{place_of(kind.step)} returned the learning rate {rate!r}: return a "
                "finite number from 0"
            )
        return rate

    return run


class OptimizerRate:
    """The current learning rates of an optimizer, which the user's code may change at any time.

    Raises `ParamsError` if the initial rate of the first group is not above 0.
    """

    drives_groups = True
    """The groups keep their rates."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        check_rate(self._rate)

    def step(self) -> float:
        """Return the rate of the first group."""
        return self._rate

    def end_epoch(self, metric: float | None = None) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict, because the optimizer's state holds the rates."""
        return {}

    def __str__(self) -> str:
        """Return that the optimizer keeps its rates."""
        return "the rates of the optimizer"

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore *state*, which may also be that of a constant schedule."""

    @property
    def _rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


def as_scheduler(
    optimizer: Optimizer, lr: float | LrScheduler | LRScheduler | ScheduleUse | Rule | None
) -> LrScheduler:
    """Return *lr* as a scheduler: a number is a constant rate, None the optimizer's own rate.

    A schedule of `stages.optim` without an initial rate starts at the optimizer's own.

    A scheduler of PyTorch steps after each batch, as Burn's do; to step after each epoch, pass
    ``TorchScheduler(scheduler, per="epoch")``. A ``ReduceLROnPlateau`` follows the validation loss; for
    another metric, pass ``TorchScheduler(scheduler, monitor="Accuracy")``. Raises `BuilderError` if the
    scheduler belongs to another optimizer, or if *lr* has no method ``step``.
    """
    if isinstance(lr, ScheduleUse):
        return build_torch_scheduler(lr, optimizer)
    if isinstance(lr, LRScheduler):
        lr = TorchScheduler(lr)
    if isinstance(lr, TorchScheduler) and lr.scheduler.optimizer is not optimizer:
        raise BuilderError(
            f"the {type(lr.scheduler).__name__} belongs to a different optimizer. Create it with the "
            "optimizer that is passed to build"
        )
    if lr is None:
        return OptimizerRate(optimizer)
    if isinstance(lr, Rule):
        return Scheduler(float(optimizer.param_groups[0]["lr"]), lr)
    if isinstance(lr, float | Real):
        return Scheduler(float(lr))
    match lr:
        case object(step=step) if callable(step) and not isinstance(lr, type):
            return lr
    raise BuilderError(
        f"the learning rate cannot be {lr!r}. Pass a number, a scheduler of stages.optim "
        "or of torch, an object with the methods of LrScheduler (step, end_epoch …), or None for the "
        "optimizer's own rate"
    )
