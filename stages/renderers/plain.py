"""One line an epoch: for files, pipes and CI."""

import sys
import time
from collections.abc import Mapping

from stages.contracts.events import Progress, Shown
from stages.contracts.history import History, Split
from stages.contracts.text import format_rounded

INTERVAL_SECONDS = 30.0


class PlainRenderer:
    """Prints a line to standard output when an epoch ends, and where one is long, a line an interval."""

    def __init__(self, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._interval = interval_seconds
        self._next = 0.0

    def write(self, line: str) -> None:
        """Print *line*, at once."""
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def start(self, progress: Progress) -> None:  # noqa: ARG002  the protocol's
        """Nothing to show yet."""
        self._next = time.monotonic() + self._interval

    def log(self, split: Split, epoch: int, name: str, value: float) -> None:
        """Draws no curve."""

    def step(self, progress: Progress) -> None:
        """Print how far the epoch is, if nothing was printed for an interval."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._interval
        self.write(step_line(progress))

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Print the epoch's values."""
        self.write(epoch_line(progress, history))
        self._next = time.monotonic() + self._interval

    def close(self) -> None:
        """Nothing is open."""


def epoch_line(progress: Progress, history: History) -> str:
    """``epoch 3/10 | train: Accuracy 97.25 %, Loss 9.23e-2 | valid: …``."""
    found = sorted((v.metric, v.split, v.value) for v in history.at(progress.epoch))
    parts = [_epoch(progress)]
    for split in Split:
        values = {metric: value for metric, its_split, value in found if its_split is split}
        if values:
            parts.append(f"{split}: {values_text(values, progress.shown)}")
    return " | ".join(parts)


def step_line(progress: Progress) -> str:
    """``epoch 3/10 | train 120/938 | Accuracy 97.25 %, Loss 9.23e-2``: the epoch so far."""
    values = values_text(progress.running(), progress.shown)
    return " | ".join(
        filter(None, [_epoch(progress), f"{progress.split} {progress.batch}/{progress.batches}", values])
    )


def values_text(values: Mapping[str, float], shown: Mapping[str, Shown]) -> str:
    """``Accuracy 97.25 %, Loss 9.23e-2``."""
    return ", ".join(
        f"{name} {value_text(value, shown.get(name, Shown()))}" for name, value in values.items()
    )


def value_text(value: float, how: Shown) -> str:
    """``97.25 %``, ``9.23e-2``."""
    return f"{format_rounded(value, how.decimals)} {how.unit or ''}".rstrip()


def _epoch(progress: Progress) -> str:
    return f"epoch {progress.epoch:>{len(str(progress.epochs))}}/{progress.epochs}"
