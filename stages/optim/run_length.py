"""The length of a run, and spans of it: a number of steps, or a share of the run or of its epochs."""

import re
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Any, Literal

from stages.contracts import text
from stages.contracts.burn import Version
from stages.contracts.errors import ParamsError
from stages.contracts.fields import MAX_STEPS, accept, is_integral
from stages.optim.gradients import Accumulation

Per = Literal["batch", "update", "epoch"]
"""The unit of an iteration of a schedule: a batch, a step of the optimizer, or an epoch."""
SPAN = re.compile(r"(\d+(?:\.\d+)?) ?(%|epochs?|steps?)")


def _read(value: Any) -> tuple[Any, str]:
    """Return the number of a span and its unit: ``%``, ``epoch`` or ``step``."""
    match = SPAN.fullmatch(value) if isinstance(value, str) else None
    return (float(match[1]), match[2].rstrip("s")) if match else (value, "step")


def _is_span(value: Any) -> bool:
    number, unit = _read(value)
    if unit == "step":
        return is_integral(number) and 1 <= int(number) <= MAX_STEPS
    return bool(0 < number <= (100 if unit == "%" else MAX_STEPS))


def _normalize(value: Any) -> int | str:
    """Return the number of steps, or a text such as ``10 %`` or ``2 epochs``."""
    number, unit = _read(value)
    if unit == "step":
        return int(number)
    return f"{text.number(number)} {'%' if unit == '%' else 'epochs'}"


Span = Annotated[
    Any,
    accept(
        f"an integer from 1 to {MAX_STEPS}, or a text such as '10 %' of the run, '2 epochs' or '500 steps'",
        _is_span,
        _normalize,
    ),
]
"""A number of steps; ``10 %`` of the run, or ``2 epochs``."""


def unit_of(per: Per, version: Version | None, *, accumulates: bool) -> Per:
    """Return the unit of a schedule with *per* in a run that follows a *version* of Burn.

    Since 0.22 each update is a step, which matters to a run that *accumulates* gradients.
    """
    return "update" if version == "0.22" and accumulates and per == "batch" else per


@dataclass(frozen=True)
class RunLength:
    """The length of a run, of which a schedule may be a share.

    Every batch is one of all ranks together, so the length does not depend on their number.
    """

    epochs: int
    batches: int
    """Batches of the train split in an epoch."""
    accumulation: Accumulation = field(default_factory=Accumulation)

    def count(self, per: Per) -> int:
        """Return the number of iterations of the whole run; for updates, the number of windows that begin."""
        if per == "epoch":
            return self.epochs
        if per == "batch":
            return self.epochs * self.batches
        window = self.accumulation.batches
        if self.accumulation.leftover == "carry":
            return ceil(self.epochs * self.batches / window)
        return self.epochs * ceil(self.batches / window)

    def steps_of(self, span: int | str, per: Per, total: int) -> int:
        """Return *span* in iterations, at least 1; a share is one of *total*.

        Raises `ParamsError` if it is longer than *total* and not a plain number of steps.
        """
        if isinstance(span, int):
            return span
        number, unit = span.split()
        per_epoch = self.count(per) / self.epochs
        if per == "update" and self.accumulation.leftover == "carry":
            per_epoch = self.batches / self.accumulation.batches  # the same for more epochs
        steps = max(1, round(total * float(number) / 100 if unit == "%" else float(number) * per_epoch))
        if steps > max(total, 1):
            raise ParamsError(
                f"build_learner.schedule: {span} is {steps} steps, one per {per}, and {total} are available. "
                "Shorten it, or train for more epochs"
            )
        return steps
