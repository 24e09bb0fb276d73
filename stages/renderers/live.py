"""A live bar on a terminal, and a line that stays for every epoch."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from stages.contracts.events import Progress
from stages.contracts.history import History
from stages.renderers.plain import epoch_line, values_text

INTERVAL_SECONDS = 0.1


class LiveRenderer:
    """Draws at most ten times a second, from the training thread: no thread of its own to wait for."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[values]}"),
            console=self._console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bars.add_task("", values="")
        self._next = 0.0

    def start(self, progress: Progress) -> None:  # noqa: ARG002  the protocol's
        """Show the bar."""
        self._bars.start()

    def step(self, progress: Progress) -> None:
        """Draw, if the last time is long enough ago."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + INTERVAL_SECONDS
        self._bars.update(
            self._task,
            description=f"epoch {progress.epoch}/{progress.epochs} {progress.split}",
            completed=progress.batch,
            total=progress.batches,
            values=values_text(progress.running(), progress.units),
        )
        self._bars.refresh()

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Print the epoch's values above the bar."""
        self._console.print(epoch_line(progress, history), highlight=False)

    def close(self) -> None:
        """Take the bar away; the terminal is as it was."""
        self._bars.stop()
