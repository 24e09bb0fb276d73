"""Learning rate schedules, each a pure function from the iteration to the rate.

The formulas are Burn's; ``burn_state`` returns the state that Burn saves after *steps* steps. Unlike in Burn,
a rate may be above 1, and a number of steps may be a `Span`, which `Rule.resolve` replaces before the run.
"""

import math
from itertools import pairwise
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from stages.contracts.burn import ScheduleState
from stages.contracts.config import Config, Use, arguments_beside, select_by_kind
from stages.contracts.errors import ParamsError
from stages.contracts.fields import OPTIONAL, Count, Factor, NonNegative, Positive, Text
from stages.contracts.history import Split
from stages.contracts.plugins import name_validator
from stages.optim.run_length import Per, RunLength, Span

FUNCTIONS = ("lr_lambda", "scale_fn")
"""Arguments of torch's schedulers that are functions, which params.yaml names by their import paths."""
OUR_KINDS = ("constant", "linear", "cosine", "exponential", "noam", "step", "composed", "sequential")
"""The schedules with Burn's formulas."""
PLATEAU = "torch.optim.lr_scheduler:ReduceLROnPlateau"
BUILT_IN = {
    **dict.fromkeys(OUR_KINDS, "stages.optim.scheduler:Scheduler"),
    "chained": "torch.optim.lr_scheduler:ChainedScheduler",
    "cosine_annealing": "torch.optim.lr_scheduler:CosineAnnealingLR",
    "cosine_annealing_warm_restarts": "torch.optim.lr_scheduler:CosineAnnealingWarmRestarts",
    "cyclic": "torch.optim.lr_scheduler:CyclicLR",
    "lambda": "torch.optim.lr_scheduler:LambdaLR",
    "multi_step": "torch.optim.lr_scheduler:MultiStepLR",
    "multiplicative": "torch.optim.lr_scheduler:MultiplicativeLR",
    "one_cycle": "torch.optim.lr_scheduler:OneCycleLR",
    "polynomial": "torch.optim.lr_scheduler:PolynomialLR",
    "reduce_on_plateau": PLATEAU,
}


TO_THE_END = "100 %"
SPANS = ("num_iters", "warmup_steps", "step_size")
"""The fields of a schedule that are numbers of steps; a sequential one has ``milestones`` too."""


class Schedule(Protocol):
    """A function from the iteration to the learning rate."""

    def rate(self, initial: float, iteration: int) -> float:
        """Return the rate of *iteration*, counted from 0; *initial* is the learning rate of the optimizer."""


class Rule(Config):
    """Options of every built-in schedule."""

    initial: Positive | None = None
    """The initial rate. Null: the optimizer's learning rate."""
    per: Per = "batch"
    """The unit of an iteration: a batch, as in Burn, an update of the weights, or an epoch. Parts of a
    schedule use the unit of the whole."""
    warmup: Span | None = OPTIONAL
    """Iterations before the schedule in which the rate grows to its first one: by equal amounts, from one of
    them."""

    @property
    def name(self) -> str:
        """The kind of the schedule."""
        return str(type(self).model_fields["kind"].default)

    @property
    def spans(self) -> list[str]:
        """The spans that depend on the length of the run, also those of the parts."""
        values = dict(self)
        spans = (*(values.get(name) for name in ("warmup", *SPANS)), *values.get("milestones", ()))
        of_parts = [span for part in self.parts for span in part.spans]
        return [*(span for span in spans if isinstance(span, str)), *of_parts]

    @property
    def parts(self) -> tuple["Rule", ...]:
        """The parts of a composed or a sequential schedule."""
        parts: tuple[Rule, ...] = dict(self).get("schedulers", ())
        return parts

    def resolve(self, length: RunLength, total: int | None = None, per: Per | None = None) -> Self:
        """Return the schedule with numbers for its spans, for a run of *length*.

        *total* is the number of its iterations, and *per* their unit; default: those of the run. Raises
        `ParamsError` if a span is longer than that.
        """
        unit = per or self.per
        available = length.count(unit) if total is None else total
        warmup = None if self.warmup is None else length.steps_of(self.warmup, unit, available)
        parts = self._resolve_parts(length, available - (warmup or 0), unit)
        return self.model_copy(update={"warmup": warmup, **parts})

    def _resolve_parts(self, length: RunLength, total: int, per: Per) -> dict[str, Any]:
        return {name: length.steps_of(span, per, total) for name, span in self if name in SPANS}

    def rate_with_warmup(self, initial: float, iteration: int) -> float:
        """Return the rate of *iteration*, counted from the first of the warm-up."""
        warmup = int(self.warmup or 0)
        if iteration < warmup:
            return self.rate(initial, 0) * (iteration + 1) / (warmup + 1)
        return self.rate(initial, iteration - warmup)

    def start(self, initial: float) -> float:
        """Return the initial rate for an optimizer whose learning rate is *initial*."""
        return initial if self.initial is None else self.initial

    def rate(self, initial: float, iteration: int) -> float:
        """Return the rate of *iteration*, counted from 0; *initial* is the learning rate of the optimizer."""
        raise NotImplementedError

    def check(self, initial: float) -> None:
        """Raise `ParamsError` if the schedule does not support the learning rate *initial*."""
        for part in self.parts:
            part.check(self.start(initial))

    def burn_state(self, initial: float, steps: int) -> ScheduleState:
        """Return the state that Burn saves after *steps* steps."""
        return ScheduleState(self.name.capitalize(), self.burn_number(initial, steps))

    def burn_number(self, initial: float, steps: int) -> int | float | None:  # noqa: ARG002  for a subclass
        """Return the number that Burn saves after *steps* steps; by default None."""
        return None


class Constant(Rule):
    """A constant rate."""

    kind: Literal["constant"] = "constant"

    def rate(self, initial: float, iteration: int) -> float:  # noqa: ARG002  required by the protocol
        """Return the initial rate."""
        return self.start(initial)


class Linear(Rule):
    """Linear change from the initial rate to ``final`` in ``num_iters`` iterations, then ``final``."""

    kind: Literal["linear"] = "linear"
    final: NonNegative
    num_iters: Span = TO_THE_END

    def rate(self, initial: float, iteration: int) -> float:
        """Return ``final - (final - initial) / n · (n - i)``, and ``final`` from i = n on."""
        remaining = max(self.num_iters - iteration, 0)
        return float(self.final - (self.final - self.start(initial)) / self.num_iters * remaining)

    def burn_number(self, initial: float, steps: int) -> int:  # noqa: ARG002  same signature as the others
        """Return the remaining iterations, from n + 1 down to 0."""
        return int(max(self.num_iters + 1 - steps, 0))


class Cosine(Rule):
    """Half a cosine from the initial rate to ``min`` in ``num_iters`` iterations, continued along the curve.

    A run that follows Burn 0.21 starts it again instead.
    """

    kind: Literal["cosine"] = "cosine"
    min: NonNegative = 0.0
    num_iters: Span = TO_THE_END

    def rate(self, initial: float, iteration: int) -> float:
        """Return ``min + ½ (initial - min) (1 + cos(π i / n))``."""
        return self.min + 0.5 * (self.start(initial) - self.min) * (
            1 + math.cos(math.pi * iteration / self.num_iters)
        )

    def burn_number(self, initial: float, steps: int) -> int:  # noqa: ARG002  same signature as the others
        """Return the last i; the largest 64-bit integer before the first step."""
        return steps - 1 if steps else 2**64 - 1

    def check(self, initial: float) -> None:
        """Raise `ParamsError` if the minimum is above the initial rate, as Burn does."""
        if self.min > self.start(initial):
            raise ParamsError(
                f"the cosine schedule starts at {self.start(initial)}, which is below its min {self.min}. "
                "Lower min, or use a linear schedule to increase the rate"
            )


class RestartingCosine(Cosine):
    """A cosine that Burn up to 0.21 repeats from its beginning after ``num_iters`` iterations. SGDR, 2017."""

    def rate(self, initial: float, iteration: int) -> float:
        """Return the rate of the cosine at i mod (n + 1)."""
        return super().rate(initial, iteration % (self.num_iters + 1))

    def burn_number(self, initial: float, steps: int) -> int:
        """Return the last k; the largest 64-bit integer before the first step."""
        number = super().burn_number(initial, steps)
        return number % (self.num_iters + 1) if steps else number


class Exponential(Rule):
    """The initial rate, multiplied by ``gamma`` in each iteration."""

    kind: Literal["exponential"] = "exponential"
    gamma: Factor

    def rate(self, initial: float, iteration: int) -> float:
        """Return ``initial · gamma^i``; Burn multiplies step by step, which differs in the last digits."""
        return float(self.start(initial) * self.gamma**iteration)

    def burn_number(self, initial: float, steps: int) -> float:
        """Return the last rate; ``initial / gamma`` before the first step."""
        return float(self.start(initial) * self.gamma ** (steps - 1))


class Noam(Rule):
    """Linear warm-up for ``warmup_steps`` iterations, then inverse square root decay. Vaswani et al., 2017.

    The initial rate is Burn's ``factor``, which scales the curve.
    """

    kind: Literal["noam"] = "noam"
    warmup_steps: Span = 4000
    model_size: Count = 512

    def rate(self, initial: float, iteration: int) -> float:
        """Return ``initial · d^-½ · min(s^-½, s · w^-1.5)`` with s = i + 1."""
        s = iteration + 1
        return float(self.start(initial) * self.model_size**-0.5 * min(s**-0.5, s * self.warmup_steps**-1.5))

    def burn_number(self, initial: float, steps: int) -> int:  # noqa: ARG002  same signature as the others
        """Return the last s."""
        return steps


class Step(Rule):
    """The initial rate, multiplied by ``gamma`` after every ``step_size`` iterations."""

    kind: Literal["step"] = "step"
    step_size: Span
    gamma: Positive = 0.1

    def rate(self, initial: float, iteration: int) -> float:
        """Return ``initial · gamma^(i div step_size)``; infinity if it overflows a float64."""
        try:
            return float(self.start(initial) * self.gamma ** (iteration // self.step_size))
        except OverflowError:
            return math.inf

    def burn_number(self, initial: float, steps: int) -> int:  # noqa: ARG002  same signature as the others
        """Return the last i; -1 before the first step."""
        return steps - 1


SimpleRule = Constant | Linear | Cosine | Exponential | Noam | Step
Simple = Annotated[SimpleRule, Field(discriminator="kind")]


class Composed(Rule):
    """Several schedules reduced to one rate. Each has its own ``initial``."""

    kind: Literal["composed"] = "composed"
    schedulers: Annotated[tuple[Simple, ...], Field(min_length=1)]
    reduction: Literal["avg", "sum", "prod"] = "prod"

    def _resolve_parts(self, length: RunLength, total: int, per: Per) -> dict[str, Any]:
        return {"schedulers": tuple(part.resolve(length, total, per) for part in self.schedulers)}

    def rate(self, initial: float, iteration: int) -> float:
        """Return the mean, sum or product of the rates."""
        rates = [schedule.rate(self.start(initial), iteration) for schedule in self.schedulers]
        if self.reduction == "prod":
            return math.prod(rates)
        return sum(rates) if self.reduction == "sum" else sum(rate / len(rates) for rate in rates)

    def burn_state(self, initial: float, steps: int) -> ScheduleState:
        """Return the state of each part."""
        parts = tuple(schedule.burn_state(self.start(initial), steps) for schedule in self.schedulers)
        return ScheduleState("Composed", None, parts)

    @model_validator(mode="after")
    def _check_parts(self) -> "Composed":
        _check_units(self.schedulers)
        at_the_rate = [schedule.kind for schedule in self.schedulers if schedule.initial is None]
        if self.reduction == "prod" and len(at_the_rate) > 1:
            raise ValueError(
                f"the product of {' and '.join(at_the_rate)}, which all start at the optimizer's learning "
                "rate, starts at a power of it. Set initial for all but one of them, for example initial: 1.0"
            )
        return self


class Sequential(Rule):
    """Schedules in sequence: at each of ``milestones`` the next one starts with its first iteration."""

    kind: Literal["sequential"] = "sequential"
    schedulers: Annotated[
        tuple[Annotated[SimpleRule | Composed, Field(discriminator="kind")], ...], Field(min_length=1)
    ]
    milestones: tuple[Span, ...]
    """The iterations at which the second, third … schedule starts, in ascending order."""

    def _resolve_parts(self, length: RunLength, total: int, per: Per) -> dict[str, Any]:
        """Resolve each part for the iterations from its milestone to the next one."""
        milestones = tuple(length.steps_of(milestone, per, total) for milestone in self.milestones)
        _check_order(milestones)
        lengths = [end - begin for begin, end in pairwise((0, *milestones, max(total, *milestones)))]
        parts = zip(self.schedulers, lengths, strict=True)
        resolved = tuple(part.resolve(length, available, per) for part, available in parts)
        return {"milestones": milestones, "schedulers": resolved}

    def rate(self, initial: float, iteration: int) -> float:
        """Return the rate of the current schedule."""
        current = sum(milestone <= iteration for milestone in self.milestones)
        begin = (0, *self.milestones)[current]
        return float(self.schedulers[current].rate(self.start(initial), iteration - begin))

    def burn_state(self, initial: float, steps: int) -> ScheduleState:
        """Return the steps and the state of each part."""
        borders = zip((0, *self.milestones), (*self.milestones, steps), strict=True)
        taken = [max(min(steps, end) - begin, 0) for begin, end in borders]
        parts = [
            schedule.burn_state(self.start(initial), count)
            for schedule, count in zip(self.schedulers, taken, strict=True)
        ]
        return ScheduleState("Sequential", steps, tuple(parts))

    @model_validator(mode="after")
    def _check_parts(self) -> "Sequential":
        _check_units(self.schedulers)
        if len(self.milestones) + 1 != len(self.schedulers):
            raise ValueError(
                f"{len(self.schedulers)} schedulers need {len(self.schedulers) - 1} milestones, one for each "
                f"scheduler after the first; found {len(self.milestones)}"
            )
        if all(isinstance(milestone, int) for milestone in self.milestones):
            _check_order(self.milestones)
        return self


def _check_order(milestones: tuple[int, ...]) -> None:
    """Raise `ValueError` if *milestones* are not in ascending order."""
    if any(later <= earlier for earlier, later in pairwise(milestones)):
        raise ValueError(
            f"the milestones must be in ascending order; found {list(milestones)}. Sort them and remove "
            "duplicates"
        )


def _check_units(parts: tuple[Rule, ...]) -> None:
    if any(part.per != "batch" for part in parts):
        raise ValueError("a part of a schedule has per. Set it for the outer schedule instead")
    if any(part.warmup for part in parts):
        raise ValueError("a part of a schedule has warmup. Set it for the outer schedule instead")


def with_restarts(rule: Any) -> Any:
    """Return *rule* with a restart of each cosine in it, as in Burn 0.21."""
    if isinstance(rule, Cosine):
        return RestartingCosine(**rule.model_dump())
    if isinstance(rule, Composed | Sequential):
        return rule.model_copy(update={"schedulers": tuple(map(with_restarts, rule.schedulers))})
    return rule


class ScheduleUse(Use):
    """A scheduler of `torch.optim.lr_scheduler` or of your own, which scales the optimizer's learning rates.

    Every key except ``kind``, ``per`` and ``monitor`` is an argument of the class. A function, such as
    ``lr_lambda``, is an import path; a list ``schedulers`` has a kind and arguments for each part.
    """

    per: Literal["batch", "epoch"] | None = None
    """The unit of a step. Required, except for ``reduce_on_plateau``, which steps after each epoch."""
    monitor: Text | None = None
    """The metric that ``reduce_on_plateau`` follows, for example ``Accuracy`` or ``train Loss``; null: the
    validation loss."""

    @model_validator(mode="after")
    def _check_unit(self) -> "ScheduleUse":
        name_validator("schedule", BUILT_IN)(self)
        if self.is_plateau and self.per == "batch":
            raise ValueError(f"{self.kind} steps after each epoch; found per: batch. Remove per")
        if not self.is_plateau and self.per is None:
            raise ValueError(f"set per to batch or epoch, after which {self.kind} makes a step")
        return self

    @property
    def is_plateau(self) -> bool:
        """True if the schedule follows a metric."""
        return BUILT_IN.get(self.kind, self.kind) == PLATEAU

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the class; null is not passed."""
        return arguments_beside(self)


def parse_monitor(monitor: str | None) -> tuple[Split, str]:
    """Return the split and the metric that *monitor* names; those of the validation loss if it is None."""
    first, _, rest = (monitor or "Loss").partition(" ")
    return (Split(first), rest) if first in list(Split) and rest else (Split.VALID, monitor or "Loss")


OurSchedule = Annotated[SimpleRule | Composed | Sequential, Field(discriminator="kind")]
"""A schedule with Burn's formula."""
ScheduleConfig = Annotated[SimpleRule | Composed | Sequential | ScheduleUse, select_by_kind(OUR_KINDS)]
