"""Renderers that need no terminal: a line per epoch on standard output or in a log, or no output.

`default_renderer` returns the one that ``LEARNER_RENDERER`` names, or the default for standard output.
"""

import logging
import math
import os
import sys
import time
from collections.abc import Mapping

from stages import renderers  # loads its names on first access: a run in a pipe imports no plotext
from stages.contracts.errors import ParamsError
from stages.contracts.events import NoRenderer as NoRenderer  # noqa: PLC0414  exported here
from stages.contracts.events import Progress, Renderer, Shown
from stages.contracts.history import History, Split
from stages.contracts.printing import print_line
from stages.contracts.text import format_rounded

UNKNOWN = "?"
"""The number of batches of a loader without a length."""
INTERVAL_SECONDS = 30.0
"""Default time between two lines within an epoch."""


class PlainRenderer(NoRenderer):
    """A renderer that prints a line after each epoch, and a line per interval within a long epoch.

    Example:
        >>> from stages.contracts.events import Progress
        >>> from stages.contracts.history import History, Split, Value
        >>> history = History([Value(1, Split.TRAIN, "Loss", 0.5)])
        >>> PlainRenderer().epoch_end(Progress(epochs=20, epoch=1), history)
        epoch  1/20 | train: Loss 0.50
    """

    def __init__(self, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._interval = interval_seconds
        self._next_line = 0.0

    def write(self, line: str) -> None:
        """Print *line* and flush standard output."""
        print_line(line)

    def start(self, progress: Progress) -> None:
        """Print the label of the run, and start the first interval."""
        if progress.label:
            self.write(progress.label)
        self._next_line = time.monotonic() + self._interval

    def step(self, progress: Progress) -> None:
        """Print the progress of the epoch, if the last line is an interval old."""
        now = time.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + self._interval
        self.write(format_step(progress))

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Print the values of the epoch."""
        self.write(format_epoch(progress, history))
        self._next_line = time.monotonic() + self._interval


class LogRenderer(PlainRenderer):
    """A `PlainRenderer` that logs each line as a record of level INFO instead of printing it."""

    def __init__(
        self,
        logger: logging.Logger | logging.LoggerAdapter[logging.Logger],
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        super().__init__(interval_seconds)
        self._logger = logger

    def write(self, line: str) -> None:
        """Log *line*."""
        self._logger.info("%s", line)


def format_epoch(progress: Progress, history: History) -> str:
    """Return the line of an epoch, such as ``epoch 3/10 | train: Accuracy 97.25 %, Loss 0.50 | valid: …``.

    The line ends with the telemetry of training, and of validation if a metric is measured there only.
    """
    measured = sorted((v.metric, v.split, v.value) for v in history.at(progress.epoch))
    parts = [_format_epoch_number(progress)]
    for split in Split:
        values = {metric: value for metric, its_split, value in measured if its_split is split}
        if values:
            parts.append(f"{split}: {format_metrics(values, progress.shown)}")
    parts.append(format_metrics(_select_telemetry(progress), progress.shown))
    return " | ".join(filter(None, parts))


def format_step(progress: Progress) -> str:
    """Return the line of an epoch in progress, such as ``epoch 3/10 | train 120/938 | Accuracy 97.25 %``.

    The values are those of the processed part of the epoch.
    """
    batch = f"{progress.split} {progress.batch}/{progress.batches or UNKNOWN}"
    values = format_metrics(progress.running(), progress.shown)
    return " | ".join(filter(None, [_format_epoch_number(progress), batch, values]))


def format_metrics(values: Mapping[str, float], shown: Mapping[str, Shown]) -> str:
    """Return *values* by metric as text, such as ``Accuracy 97.25 %, Loss 9.23e-2``."""
    return ", ".join(
        f"{name} {format_metric(value, shown.get(name, Shown()))}" for name, value in values.items()
    )


def format_metric(value: float, options: Shown) -> str:
    """Return *value* with its unit, such as ``97.25 %`` or ``9.23e-2``."""
    return f"{format_rounded(value, options.decimals)} {options.unit or ''}".rstrip()


def _select_telemetry(progress: Progress) -> dict[str, float]:
    """Return one value per telemetry metric, without those that this machine cannot provide."""
    train, valid = (progress.telemetry.get(split, {}) for split in Split)
    values = {**train, **valid, **train}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _format_epoch_number(progress: Progress) -> str:
    return f"epoch {progress.epoch:>{len(str(progress.epochs))}}/{progress.epochs}"


VARIABLE = "LEARNER_RENDERER"
RENDERER_NAMES = ("live", "plain", "none")


def default_renderer() -> Renderer:
    """Return a new renderer of the kind that `read_renderer_name` returns."""
    match read_renderer_name():
        case "live":
            return renderers.LiveRenderer()
        case "plain":
            return renderers.PlainRenderer()
        case _:
            return renderers.NoRenderer()


def read_renderer_name() -> str:
    """Return the value of ``LEARNER_RENDERER``: ``live``, ``plain`` or ``none``.

    If it is not set or empty, the name is ``live`` on a terminal and ``plain`` elsewhere. Raises
    `ParamsError` for any other value.
    """
    name = os.environ.get(VARIABLE) or ("live" if _can_draw() else "plain")
    if name not in RENDERER_NAMES:
        raise ParamsError(f"{VARIABLE} is {name!r}. Set it to live, plain or none, or unset it")
    return name


def _can_draw() -> bool:
    """Return whether standard output is a terminal that can move its cursor."""
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
