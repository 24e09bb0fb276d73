"""The live view of a run in a terminal: metrics, curves, remaining time, and keys that control the run."""

import atexit
import contextlib
import math
import os
import signal
import time
from collections import defaultdict

from rich.text import Text

from stages.contracts.errors import KilledError
from stages.contracts.events import Progress
from stages.contracts.history import History, Split, Value
from stages.contracts.printing import print_line
from stages.renderers.chart import MAX_POINTS, Curve, Point, draw_chart, reduce_points
from stages.renderers.frame import FrameBuilder, compute_plot_size
from stages.renderers.plain import format_epoch
from stages.renderers.scene import MetricValues, RemainingTime, Scene, Selection, View
from stages.renderers.terminal import Key, Keyboard, Screen

INTERVAL_SECONDS = 0.1
"""Time between two reads of the keyboard, and minimum time between two frames."""
MAX_DRAWING_SHARE = 0.05
"""Maximum share of the time spent on frames: if a frame takes longer to draw, frames become rarer."""


class LiveRenderer:
    """A live view of the run on the alternate screen of the terminal.

    It draws in the training thread between two steps, because a second thread would compete for the
    interpreter. A key therefore takes effect after the current step. `close` prints the lines of all epochs
    on the normal screen. If standard output is not a terminal, each line is printed at the end of its epoch.
    A frame overwrites whatever other code prints during the run.

    `close` restores the terminal. The learner calls it in all cases: after an exception, after Ctrl-C, and
    after a SIGTERM whose handler raises an exception. If it was never called, it runs when the interpreter
    exits. This class installs no signal handler, so a process that is killed by a signal does not restore the
    terminal. Run ``reset`` to repair it.
    """

    def __init__(self) -> None:
        self._screen = Screen()
        self._keyboard = Keyboard()
        self._frames = FrameBuilder()
        self._curves: dict[str, Curve] = defaultdict(Curve)
        self._values = MetricValues()
        self._selection = Selection()
        self._history = History()
        self._telemetry = History()
        self._lines: list[str] = []
        self._remaining = RemainingTime()
        self._chart: tuple[object, Text] = (None, Text())
        self._next_read = self._next_frame = 0.0
        self._drawing_seconds = 0.0

    def start(self, progress: Progress) -> None:
        """Open the view and draw the first frame."""
        atexit.register(self.close)
        self._remaining = RemainingTime()
        self._screen.open()
        if self._screen.is_open:
            self._keyboard.open()
        self._draw_safely(progress)

    def log(self, split: Split, epoch: int, name: str, value: float) -> None:  # noqa: ARG002  required by the protocol
        """Add a point to the curve of metric *name*."""
        self._curves[name].add(split, value)

    def step(self, progress: Progress) -> None:
        """Read the keyboard and draw a frame, if the last time is long enough ago.

        Raises `KilledError` if the kill key was pressed in the quit dialog.
        """
        now = time.monotonic()
        if now < self._next_read:
            return
        self._next_read = now + INTERVAL_SECONDS
        keys = self._keyboard.read()
        for key in keys:
            self._handle_key(key, progress)
        if keys or now >= self._next_frame:
            self._draw_safely(progress)
        elif self._next_frame < self._next_read:
            self._next_read = self._next_frame

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Keep the line of the epoch for `close`, and the history for the view of epochs."""
        self._history = history
        for split, values in progress.telemetry.items():
            for name in filter(lambda name: math.isfinite(values[name]), values):
                self._telemetry.add(Value(progress.epoch, split, name, values[name]))
        self._lines.append(format_epoch(progress, history))
        if not self._screen.is_open:
            self._print_lines()

    def close(self) -> None:
        """Restore the terminal and print the line of each epoch. A second call has no effect."""
        atexit.unregister(self.close)
        self._keyboard.close()
        self._screen.close()
        self._print_lines()

    def _print_lines(self) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            for line in self._lines:
                print_line(line)
        self._lines.clear()

    def _handle_key(self, key: Key, progress: Progress) -> None:
        was_quitting = self._selection.is_quitting
        self._selection = self._selection.apply(key, len(self._list_metrics(progress)))
        if was_quitting and key is Key.STOP:
            progress.interrupter.stop("the key to stop was pressed")
        if was_quitting and key is Key.KILL:
            error = KilledError()
            self._lines.append(str(error))
            raise error
        if key is Key.SUSPEND:
            self._suspend()

    def _suspend(self) -> None:
        """Restore the terminal, stop the process group as Ctrl-Z does, and reopen the view after a resume."""
        self._keyboard.close()
        self._screen.close()
        os.kill(0, signal.SIGTSTP)
        self._screen.open()
        self._keyboard.open()

    def _draw_safely(self, progress: Progress) -> None:
        """Draw a frame, if the terminal is ready. An exception closes the view, and the run continues."""
        if not self._screen.is_ready:
            return
        start = time.monotonic()
        try:
            self._draw(progress, start)
        except Exception as error:  # noqa: BLE001  no error of the view may end the training
            self._lines.append(f"the live view ended: {error!r}")
            self.close()
        end = time.monotonic()
        previous, self._drawing_seconds = self._drawing_seconds, end - start
        pause = min(previous, self._drawing_seconds) / MAX_DRAWING_SHARE
        self._next_frame = end + max(INTERVAL_SECONDS, pause)

    def _draw(self, progress: Progress, now: float) -> None:
        size = self._screen.size
        self._values.update(progress)
        metrics = self._list_metrics(progress)
        scene = Scene(
            progress=progress,
            values=self._values,
            selection=self._selection,
            metric_names=metrics,
            chart=self._update_chart(metrics, compute_plot_size(size)),
            remaining=self._remaining.estimate(progress, now),
            has_keys=self._keyboard.is_open,
        )
        self._screen.draw(self._frames.build(scene, size), size)

    def _list_metrics(self, progress: Progress) -> list[str]:
        """Return the metrics with curves, in the order of the Metrics pane."""
        numeric = [name for name, options in progress.shown.items() if options.numeric]
        return numeric or list(self._curves)

    def _update_chart(self, metrics: list[str], size: tuple[int, int] | None) -> Text:
        """Return the chart of the selection, drawn again only after a change of points, size or selection."""
        if not metrics or size is None:
            return Text()
        view, name = self._selection.view, metrics[self._selection.metric % len(metrics)]
        count = len(self._history) if view is View.EPOCHS else len(self._curves[name])
        state = (name, view, size, count)
        if state != self._chart[0]:
            self._chart = state, draw_chart(self._read_points(name, view), *size)
        return self._chart[1]

    def _read_points(self, name: str, view: View) -> dict[Split, list[Point]]:
        match view:
            case View.FULL:
                return self._curves[name].sample_all()
            case View.RECENT:
                return self._curves[name].sample_recent()
            case View.EPOCHS:
                is_telemetry = name in self._telemetry.metrics()
                history = self._telemetry if is_telemetry else self._history
                series = {split: history.series(split, name) for split in Split}
                return {
                    split: reduce_points(list(values.items()), MAX_POINTS) for split, values in series.items()
                }
