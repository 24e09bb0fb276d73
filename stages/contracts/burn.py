"""The versions of Burn that a run can follow, and the state of a schedule in Burn, which records store."""

from dataclasses import dataclass
from typing import Literal

Version = Literal["0.21", "0.22"]
"""A version of Burn whose logs, schedules and metrics a run has."""


def choose_version(chosen: Version | None, suffix: str) -> Version | None:
    """Return *chosen*, by default 0.22 if checkpoints have its *suffix*; None for what this project does."""
    return chosen or ("0.22" if suffix == ".bpk" else None)


@dataclass(frozen=True)
class NumberField:
    """The number that Burn saves of a schedule."""

    name: str
    """Its name since 0.22."""
    is_signed: bool = False
    """True for an integer with a sign."""
    is_float_since_022: bool = False
    """True for an integer that 0.22 saves as a float."""


FIELDS = {
    "Linear": NumberField("remaining_iters"),
    "Cosine": NumberField("current_iter"),
    "Exponential": NumberField("previous_lr"),
    "Noam": NumberField("step", is_float_since_022=True),
    "Step": NumberField("iter_idx", is_signed=True),
    "Sequential": NumberField("step"),
}
"""The fields of Burn's schedules, in the order of the enum that has the parts of a composed one in 0.21."""


@dataclass(frozen=True)
class ScheduleState:
    """The state of a schedule: a number, or the states of the parts of a composed one, or both."""

    kind: str
    """A key of `FIELDS`, or ``Constant``, ``Composed`` or ``Groups``, which have no number."""
    number: int | float | None = None
    parts: tuple["ScheduleState", ...] = ()
