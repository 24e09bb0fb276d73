"""The events that loggers and renderers receive from the loop, and the flag by which they can stop a run.

They do not change the run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from stages.contracts.history import Direction, History, Split
from stages.contracts.step_log import LoggedSample


class Interrupter:
    """A flag that any thread, renderer or signal handler can set; the loop checks it after each step.

    Burn's `Interrupter`. It has no lock, because a signal handler could wait for a lock forever.
    """

    def __init__(self) -> None:
        self._stopped = False
        self.message: str | None = None
        """The reason of the stop; None before a stop."""
        self._listener = False
        self._is_obeyed = False

    def begin_run(self) -> None:
        """Clear the flag if an earlier run has stopped for it; any other stop is that of the new run."""
        if self._is_obeyed:
            self.reset()

    def obey(self) -> None:
        """Stop the run that calls this, on all ranks, and no later one."""
        self.stop()
        self._is_obeyed = True

    def stop(self, reason: str | None = None) -> None:
        """Stop the run after the current step. The *reason* of the first call is kept."""
        if not self._stopped:
            self.message = reason
        self._stopped = True

    def reset(self) -> None:
        """Clear the flag and the reason."""
        self._stopped = self._is_obeyed = False
        self.message = None

    def should_stop(self) -> bool:
        """Return whether the run must stop."""
        self._listener = True
        return self._stopped

    def has_listener(self) -> bool:
        """Return whether the flag was ever checked; a stop before that takes effect when the loop starts."""
        return self._listener


@dataclass(frozen=True, slots=True)
class Step:
    """One step, for metrics of the run instead of the model's output."""

    item: Any
    """The item that the model's step returned."""
    split: Split
    epoch: int
    """Counted from 1."""
    iteration: int
    """The batch of this epoch and split, counted from 1."""
    learning_rate: float
    """The learning rate of this step; 0 on the valid split."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The display options of a metric."""

    unit: str | None = None
    decimals: int = 2
    numeric: bool = True
    """True if the metric has a curve and a row in the summary."""


@dataclass
class Progress:
    """The progress of a run. One object is updated for the whole run, so a step allocates nothing."""

    epochs: int
    """The number of epochs of the run."""
    label: str | None = None
    """The name that the user has given the run."""
    first_epoch: int = 1
    """The first epoch of this process: after a resume, the epoch after the checkpoint."""
    epoch: int = 0
    """Counted from 1; 0 before the first epoch."""
    split: Split = Split.TRAIN
    batch: int = 0
    """The number of finished batches of this epoch and split."""
    batches: int = 0
    """The number of batches in this epoch and split; 0 if the loader has no length."""
    items: int = 0
    """The number of processed samples of this epoch and split."""
    running: Callable[[], Mapping[str, float]] = dict
    """A function that returns the value of each metric over the processed part of this epoch and split."""
    latest: Callable[[], Mapping[str, float]] = dict
    """A function that returns the value of each metric on the last batch of this split."""
    telemetry: dict[Split, Mapping[str, float]] = field(default_factory=dict)
    """The values of telemetry metrics, over each pass of this epoch that this process has completed."""
    shown: Mapping[str, Shown] = field(default_factory=dict)
    """The display options by metric: text metrics first, then numeric ones, each in order of registration."""
    interrupter: Interrupter = field(default_factory=Interrupter)
    """The flag by which a renderer can stop the run."""


class MetricLogger(Protocol):
    """A writer of the metrics of one split. A user's logger may implement `Resumable` as well."""

    def log(self, epoch: int, name: str, value: float, count: float) -> None:
        """Log the *value* of metric *name* on one batch of *count* samples."""

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Log the *value* of *name* over the whole epoch if it is not the mean of its batches."""

    def flush(self) -> None:
        """Pass everything logged to the operating system."""

    def close(self) -> None:
        """Release all resources; called when the run ends, also after an error."""


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """What a logger may store about a metric. Burn's `MetricDefinition`."""

    name: str
    unit: str | None
    description: str | None
    better: Direction | None
    """Whether the highest or the lowest value is the best; None if the metric has no order."""


@runtime_checkable
class DefinitionLogger(Protocol):
    """The optional part of a `MetricLogger` that receives the metrics before their first value."""

    def log_metric_definition(self, definition: MetricDefinition) -> None:
        """Log the *definition* of a metric; called once for each metric of a run."""


@runtime_checkable
class IterationLogger(Protocol):
    """The optional part of a `MetricLogger` that receives the number of each batch before its values."""

    def begin_batch(self, epoch: int, iteration: int) -> None:
        """Log the next values as those of the batch *iteration* of *epoch*, from 1.

        Batches that are left out, because they are not finite, have numbers too.
        """


@runtime_checkable
class BatchLogger(Protocol):
    """The optional part of a `MetricLogger` that logs many batches at once."""

    def log_batches(self, epoch: int, name: str, values: Sequence[tuple[float, float]]) -> None:
        """Log the value and the count of metric *name* on each of several batches."""


@runtime_checkable
class BareLogger(Protocol):
    """The optional part of a `MetricLogger` that logs a value of an epoch as a line without a count."""

    def log_bare(self, epoch: int, name: str, value: float) -> None:
        """Log the *value* of *name* over the whole epoch."""


@runtime_checkable
class SampleLogger(Protocol):
    """The optional part of a `MetricLogger` that logs samples of an epoch, which a step has logged."""

    def log_sample(self, epoch: int, sample: LoggedSample) -> None:
        """Log *sample*; after a resume within an epoch, those of the batches after it are logged again."""


Values = Sequence[tuple[float, float] | None]
"""The value and the count of a metric on each of several batches; None for a batch without them."""


def iterate_batches(
    iterations: Sequence[int], columns: Mapping[str, Values]
) -> Iterator[tuple[int, dict[str, tuple[float, float]]]]:
    """Yield the number of each batch, and the value and the count of each of *columns* that has one."""
    for iteration, *batch in zip(iterations, *columns.values(), strict=True):
        yield iteration, {name: pair for name, pair in zip(columns, batch, strict=True) if pair is not None}


def log_batches(
    logger: MetricLogger, epoch: int, iterations: Sequence[int], columns: Mapping[str, Values]
) -> None:
    """Log *columns*, the values of each metric on the batches *iterations* of *epoch*.

    A `BatchLogger` receives a metric at a time. Other loggers receive a batch at a time, so that their order
    does not depend on how many batches there are.
    """
    if not issubclass(type(logger), BatchLogger):  # `isinstance` would list the protocol's methods each time
        numbered = logger if isinstance(logger, IterationLogger) else None
        for iteration, values in iterate_batches(iterations, columns):
            if numbered is not None:
                numbered.begin_batch(epoch, iteration)
            for name, (value, count) in values.items():
                logger.log(epoch, name, value, count)
        return
    batch_logger: Any = logger
    for name, column in columns.items():
        present = [pair for pair in column if pair is not None] if None in column else column
        if present:
            batch_logger.log_batches(epoch, name, present)


@runtime_checkable
class Resumable(Protocol):
    """The optional part of a `MetricLogger` that prevents duplicate lines after a resume.

    A logger without it receives the steps after the resume like any others.
    """

    def position(self) -> dict[str, Any]:
        """Sync everything logged to disk and return the position as text, numbers, lists and dicts."""

    def resume(self, epoch: int, position: Mapping[str, Any]) -> None:
        """Resume in *epoch* at a *position* that `position` returned, and remove everything later.

        Raises `CheckpointError` if that is impossible.
        """

    def cut(self, epoch: int) -> None:
        """Remove everything logged for the epochs after *epoch*; called before the first epoch runs."""


@runtime_checkable
class Verifiable(Protocol):
    """The optional part of a `Resumable` that verifies its logs before a checkpoint is chosen."""

    def verify(self, position: Mapping[str, Any]) -> None:
        """Raise `CheckpointError` if `resume` from *position* is impossible."""


class Renderer(Protocol):
    """A display of a run."""

    def start(self, progress: Progress) -> None:
        """Start the display."""

    def log(self, split: Split, epoch: int, name: str, value: float) -> None:
        """Add the *value* of metric *name* on one batch to its curve; may be called some steps late."""

    def step(self, progress: Progress) -> None:
        """Update after a batch; called for each batch, so most calls must return immediately."""

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Update after both splits of an epoch, whose values are in *history*."""

    def close(self) -> None:
        """Release all resources; called when the run ends, also after an error."""


@runtime_checkable
class CheckpointRenderer(Protocol):
    """The optional part of a `Renderer` that receives the checkpoints of epochs."""

    def checkpoint(self, epoch: int) -> None:
        """Report that the checkpoint of *epoch* is on disk."""


class NoRenderer:
    """A renderer without output."""

    def start(self, progress: Progress) -> None:
        """Do nothing."""

    def log(self, split: Split, epoch: int, name: str, value: float) -> None:
        """Do nothing."""

    def step(self, progress: Progress) -> None:
        """Do nothing."""

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Renderers:
    """Forwards each event to all *renderers*, in their order."""

    def __init__(self, renderers: Sequence[Renderer]) -> None:
        self.renderers = tuple(renderers)

    def start(self, progress: Progress) -> None:
        """Forward to each renderer."""
        for renderer in self.renderers:
            renderer.start(progress)

    def log(self, split: Split, epoch: int, name: str, value: float) -> None:
        """Forward to each renderer."""
        for renderer in self.renderers:
            renderer.log(split, epoch, name, value)

    def step(self, progress: Progress) -> None:
        """Forward to each renderer."""
        for renderer in self.renderers:
            renderer.step(progress)

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Forward to each renderer."""
        for renderer in self.renderers:
            renderer.epoch_end(progress, history)

    def checkpoint(self, epoch: int) -> None:
        """Forward to each renderer that receives checkpoints."""
        for renderer in self.renderers:
            if isinstance(renderer, CheckpointRenderer):
                renderer.checkpoint(epoch)

    def close(self) -> None:
        """Forward to each renderer."""
        for renderer in self.renderers:
            renderer.close()
