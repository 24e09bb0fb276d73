"""Rules for the learning rate: each is a pure function from the iteration to the rate.

The formulas are Burn's; ``burn_state`` is what Burn saves after *steps* steps. A rate above 1, which Burn
refuses, is allowed: with L-BFGS 1 is ordinary, and others go beyond.
"""

import math
from itertools import pairwise
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, model_validator

from stages.contracts.config import Config
from stages.contracts.errors import ParamsError
from stages.contracts.fields import Count, Factor, NonNegative, Positive, Steps


class Schedule(Protocol):
    """A rule for the learning rate."""

    def rate(self, initial: float, iteration: int) -> float:
        """The rate of *iteration*, from 0, where *initial* is the optimizer's own."""


class Rule(Config):
    """What every rule of ours has."""

    initial: Positive | None = None
    """Where it starts. Null: the optimizer's learning rate."""
    per: Literal["batch", "epoch"] = "batch"
    """What an iteration is. Burn's is always a batch. Parts of another schedule follow that one."""

    def start(self, initial: float) -> float:
        """Where it starts, in an optimizer whose rate is *initial*."""
        return initial if self.initial is None else self.initial

    def check(self, initial: float) -> None:
        """Nothing, or a `ParamsError` that tells what cannot work with *initial*."""


class Constant(Rule):
    """The same rate throughout."""

    kind: Literal["constant"] = "constant"

    def rate(self, initial: float, iteration: int) -> float:  # noqa: ARG002  the protocol's
        """The start."""
        return self.start(initial)

    def burn_state(self, initial: float, steps: int) -> None:
        """Nothing."""


class Linear(Rule):
    """From the start to ``final`` in ``num_iters`` iterations, then ``final``."""

    kind: Literal["linear"] = "linear"
    final: NonNegative
    num_iters: Steps

    def rate(self, initial: float, iteration: int) -> float:
        """``final - (final - initial) / n · (n - i)``, and ``final`` from i = n on."""
        remaining = max(self.num_iters - iteration, 0)
        return self.final - (self.final - self.start(initial)) / self.num_iters * remaining

    def burn_state(self, initial: float, steps: int) -> int:  # noqa: ARG002  as the others
        """The iterations that remain, from n + 1 down to 0."""
        return max(self.num_iters + 1 - steps, 0)


class Cosine(Rule):
    """From the start to ``min`` along half a cosine in ``num_iters`` iterations, then again. SGDR, 2017."""

    kind: Literal["cosine"] = "cosine"
    min: NonNegative = 0.0
    num_iters: Steps

    def rate(self, initial: float, iteration: int) -> float:
        """``min + ½ (initial - min) (1 + cos(π k / n))`` with k = i mod (n + 1)."""
        k = iteration % (self.num_iters + 1)
        return self.min + 0.5 * (self.start(initial) - self.min) * (
            1 + math.cos(math.pi * k / self.num_iters)
        )

    def burn_state(self, initial: float, steps: int) -> int:  # noqa: ARG002  as the others
        """The last k; before the first, the largest 64-bit integer."""
        return (steps - 1) % (self.num_iters + 1) if steps else 2**64 - 1

    def check(self, initial: float) -> None:
        """Refuse a minimum above the start, as Burn does."""
        if self.min > self.start(initial):
            raise ParamsError(
                f"the cosine schedule starts at {self.start(initial)} and its min is {self.min}, "
                "which is more: lower min, or use a linear schedule to go up"
            )


class Exponential(Rule):
    """The start, times ``gamma`` for every iteration."""

    kind: Literal["exponential"] = "exponential"
    gamma: Factor

    def rate(self, initial: float, iteration: int) -> float:
        """``initial · gamma^i``; Burn multiplies step by step, which rounds otherwise in the last digits."""
        return float(self.start(initial) * self.gamma**iteration)

    def burn_state(self, initial: float, steps: int) -> float:
        """The last rate; before the first, the one that it would follow."""
        return float(self.start(initial) * self.gamma ** (steps - 1))


class Noam(Rule):
    """Up for ``warmup_steps`` iterations, then down with their square root. Vaswani et al., 2017.

    The start is Burn's ``factor``: it scales the curve, and no iteration has it as its rate.
    """

    kind: Literal["noam"] = "noam"
    warmup_steps: Steps = 4000
    model_size: Count = 512

    def rate(self, initial: float, iteration: int) -> float:
        """``initial · d^-½ · min(s^-½, s · w^-1.5)`` with s = i + 1."""
        s = iteration + 1
        return float(self.start(initial) * self.model_size**-0.5 * min(s**-0.5, s * self.warmup_steps**-1.5))

    def burn_state(self, initial: float, steps: int) -> int:  # noqa: ARG002  as the others
        """The last s."""
        return steps


class Step(Rule):
    """The start, times ``gamma`` after every ``step_size`` iterations."""

    kind: Literal["step"] = "step"
    step_size: Steps
    gamma: Positive = 0.1

    def rate(self, initial: float, iteration: int) -> float:
        """``initial · gamma^(i div step_size)``; infinity if a float64 cannot hold it."""
        try:
            return float(self.start(initial) * self.gamma ** (iteration // self.step_size))
        except OverflowError:
            return math.inf

    def burn_state(self, initial: float, steps: int) -> int:  # noqa: ARG002  as the others
        """The last i; before the first, -1."""
        return steps - 1


Simple = Annotated[Constant | Linear | Cosine | Exponential | Noam | Step, Field(discriminator="kind")]


class Composed(Rule):
    """Several schedules at once, reduced to one rate. Each starts at its own ``initial``."""

    kind: Literal["composed"] = "composed"
    schedulers: Annotated[tuple[Simple, ...], Field(min_length=1)]
    reduction: Literal["avg", "sum", "prod"] = "prod"

    def rate(self, initial: float, iteration: int) -> float:
        """The mean, sum or product of their rates."""
        rates = [each.rate(self.start(initial), iteration) for each in self.schedulers]
        if self.reduction == "prod":
            return math.prod(rates)
        return sum(rates) if self.reduction == "sum" else sum(rate / len(rates) for rate in rates)

    def burn_state(self, initial: float, steps: int) -> dict[str, Any]:
        """The state of each under its name in Burn."""
        states = [each.burn_state(self.start(initial), steps) for each in self.schedulers]
        named = [{type(each).__name__: state} for each, state in zip(self.schedulers, states, strict=True)]
        return {"schedulers": named}

    def check(self, initial: float) -> None:
        """Check each."""
        for each in self.schedulers:
            each.check(self.start(initial))

    @model_validator(mode="after")
    def _check_parts(self) -> "Composed":
        _refuse_per(self.schedulers)
        at_the_rate = [each.kind for each in self.schedulers if each.initial is None]
        if self.reduction == "prod" and len(at_the_rate) > 1:
            raise ValueError(
                f"a product of {' and '.join(at_the_rate)} that all start at the optimizer's learning rate "
                "has a power of it as its rate: give all but one of them an initial, as in initial: 1.0"
            )
        return self


class Sequential(Rule):
    """One schedule after another: at each of ``milestones`` the next begins, with its own first iteration."""

    kind: Literal["sequential"] = "sequential"
    schedulers: Annotated[
        tuple[Annotated[Simple | Composed, Field(discriminator="kind")], ...], Field(min_length=1)
    ]
    milestones: tuple[Steps, ...]
    """The iterations at which the second, third … schedule begins, in ascending order."""

    def rate(self, initial: float, iteration: int) -> float:
        """The rate of the schedule whose turn it is."""
        turn = sum(milestone <= iteration for milestone in self.milestones)
        begin = (0, *self.milestones)[turn]
        return self.schedulers[turn].rate(self.start(initial), iteration - begin)

    def burn_state(self, initial: float, steps: int) -> dict[str, Any]:
        """The steps and, by its number, the state of each."""
        state: dict[str, Any] = {"step": steps}
        borders = zip((0, *self.milestones), (*self.milestones, steps), strict=True)
        for number, (each, (begin, end)) in enumerate(zip(self.schedulers, borders, strict=True)):
            taken = max(min(steps, end) - begin, 0)
            state[str(number)] = each.burn_state(self.start(initial), taken)
        return state

    def check(self, initial: float) -> None:
        """Check each."""
        for each in self.schedulers:
            each.check(self.start(initial))

    @model_validator(mode="after")
    def _check_parts(self) -> "Sequential":
        _refuse_per(self.schedulers)
        if len(self.milestones) + 1 != len(self.schedulers):
            raise ValueError(
                f"{len(self.schedulers)} schedulers need {len(self.schedulers) - 1} milestones, one for each "
                f"that takes over, and there are {len(self.milestones)}"
            )
        if any(later <= earlier for earlier, later in pairwise(self.milestones)):
            raise ValueError(f"the milestones {list(self.milestones)} do not ascend: sort them, no two alike")
        return self


def _refuse_per(parts: tuple[Rule, ...]) -> None:
    if any(part.per != "batch" for part in parts):
        raise ValueError("a part of a schedule says per: epoch: say it of the whole schedule instead")


ScheduleConfig = Annotated[
    Constant | Linear | Cosine | Exponential | Noam | Step | Composed | Sequential,
    Field(discriminator="kind"),
]
