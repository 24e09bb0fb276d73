"""What a metric is: one method that turns a step's output into a value that adds."""

from typing import Any, Protocol, Self


class Summary(Protocol):
    """What a batch contributes. Sums over batches, epochs and ranks; stays on its device until asked.

    May also have ``has_batch_value``: False if the value of a single batch is neither logged nor shown, for
    example because it is expensive. It must be the same for all batches of a run, whatever their size: a
    resumed run must log the same lines as an uninterrupted one.
    """

    def __add__(self, other: Self, /) -> Self:
        """Both together."""

    @property
    def value(self) -> float:
        """What it comes to; NaN of nothing. The only wait for the device."""

    @property
    def count(self) -> int:
        """How many samples (or tokens) are in it: its weight in a log line."""


class Metric(Protocol):
    """One number to follow through a run. A user's own needs these and no base class.

    May also have:

    * ``measures``: the type of output it takes, or a tuple of them; the learner says so where a model's
      step gives another.
    * ``better``: a `Direction`, for what is best.
    * ``decimals``: digits shown to people, 2 where it is missing.
    * ``train_only``: True if it is measured in training only, also if it is registered for both splits.
    * ``telemetry``: True for what depends on the clock or the machine; such a metric is kept out of the
      history and of every tracked file.
    """

    name: str
    """As logs, curves and the summary show it; spaces become ``_`` in file names."""
    unit: str | None

    def measure(self, output: Any) -> Summary:
        """What *output*, a step's item, comes to."""


class StepMetric(Protocol):
    """A metric of the run itself, as the learning rate. May have the same attributes as a `Metric`."""

    name: str
    unit: str | None

    def measure_step(self, step: Any) -> Summary:
        """What *step*, a `stages.contracts.events.Step`, comes to."""
