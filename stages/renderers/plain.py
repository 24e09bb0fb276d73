"""One line an epoch: for files, pipes and CI."""

import sys
from collections.abc import Mapping

from stages.contracts.events import Progress
from stages.contracts.history import History, Split
from stages.contracts.text import rounded


class PlainRenderer:
    """Prints a line to standard output when an epoch ends."""

    def start(self, progress: Progress) -> None:
        """Nothing to show yet."""

    def step(self, progress: Progress) -> None:
        """Nothing to show yet."""

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Print the epoch's values."""
        sys.stdout.write(epoch_line(progress, history) + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing is open."""


def epoch_line(progress: Progress, history: History) -> str:
    """``epoch 3/10 | train: Accuracy 97.25 %, Loss 9.23e-2 | valid: …``."""
    parts = [f"epoch {progress.epoch:>{len(str(progress.epochs))}}/{progress.epochs}"]
    for split in Split:
        values = {
            metric: series[progress.epoch]
            for metric in history.metrics()
            if progress.epoch in (series := history.series(split, metric))
        }
        if values:
            parts.append(f"{split}: {values_text(values, progress.units)}")
    return " | ".join(parts)


def values_text(values: Mapping[str, float], units: Mapping[str, str | None]) -> str:
    """``Accuracy 97.25 %, Loss 9.23e-2``."""
    return ", ".join(
        f"{name} {rounded(value)} {units.get(name) or ''}".rstrip() for name, value in values.items()
    )
