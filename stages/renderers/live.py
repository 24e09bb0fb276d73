"""The whole run on a terminal: numbers, curves, how long it takes, and keys to steer by."""

import atexit
import contextlib
import os
import signal
import sys
import time
from collections import defaultdict

from rich.text import Text

from stages.contracts.errors import KilledError
from stages.contracts.events import Progress
from stages.contracts.history import History, Split
from stages.renderers.chart import chart
from stages.renderers.curves import FULL, Curve, Point, reduced
from stages.renderers.frame import Frames, plot_size
from stages.renderers.keyboard import Key, Keyboard
from stages.renderers.panes import Scene
from stages.renderers.plain import epoch_line
from stages.renderers.readings import Readings
from stages.renderers.remaining import Pace
from stages.renderers.screen import Screen
from stages.renderers.selection import Selection, View

INTERVAL_SECONDS = 0.1
"""Between two looks at the keyboard, and at least between two frames."""
LARGEST_SHARE = 0.05
"""Of the time that goes into frames: where one takes longer, they become rarer."""


class LiveRenderer:
    """Draws from the training thread, between two steps: a thread of its own would fight for the interpreter.

    So keys are heard once a step. The other screen of the terminal is used, and the line of every epoch is
    printed on the normal one at the end; where standard output is no terminal, as soon as the epoch is over.
    What others print meanwhile is drawn over.

    The terminal is as before after `close`, which who drives a renderer calls in any case: so after an
    exception too, after Ctrl-C, and after a SIGTERM that a handler turns into either. Where nobody does, it
    is at the interpreter's exit. This class installs no handler: a process that a signal kills on the spot
    leaves the terminal as it is (``reset`` mends it).
    """

    def __init__(self) -> None:
        self._screen = Screen()
        self._keyboard = Keyboard()
        self._frames = Frames()
        self._curves: dict[str, Curve] = defaultdict(Curve)
        self._readings = Readings()
        self._selection = Selection()
        self._history = History()
        self._lines: list[str] = []
        self._pace = Pace(time.monotonic())
        self._chart: tuple[object, Text] = (None, Text())
        self._next_look = self._next_frame = 0.0
        self._cost = 0.0

    def start(self, progress: Progress) -> None:
        """Change to the view."""
        atexit.register(self.close)
        self._pace = Pace(time.monotonic())
        self._screen.open()
        if self._screen.is_open:
            self._keyboard.open()
        self._show(progress)

    def log(self, split: Split, epoch: int, name: str, value: float) -> None:  # noqa: ARG002  the protocol's
        """Note a point of a curve."""
        self._curves[name].add(split, value)

    def step(self, progress: Progress) -> None:
        """Listen and draw, if the last time is long enough ago.

        Raises `KilledError` if the key to kill was pressed.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + INTERVAL_SECONDS
        keys = self._keyboard.read()
        for key in keys:
            self._obey(key, progress)
        if keys or now >= self._next_frame:
            self._show(progress)
        elif self._next_frame < self._next_look:
            self._next_look = self._next_frame

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Keep the epoch's line for the end, and its values for the plot of epochs."""
        self._history = history
        self._lines.append(epoch_line(progress, history))
        if not self._screen.is_open:
            self._print()

    def close(self) -> None:
        """Leave the view; print every epoch's line."""
        atexit.unregister(self.close)
        self._keyboard.close()
        self._screen.close()
        self._print()

    def _print(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            sys.stdout.writelines(f"{line}\n" for line in self._lines)
            sys.stdout.flush()
        self._lines.clear()

    def _obey(self, key: Key, progress: Progress) -> None:
        asked = self._selection.asking
        self._selection = self._selection.after(key, len(self._plotted(progress)))
        if asked and key is Key.STOP:
            progress.interrupter.stop("the key to stop was pressed")
        if asked and key is Key.KILL:
            error = KilledError()
            self._lines.append(str(error))
            raise error
        if key is Key.SUSPEND:
            self._suspend()

    def _suspend(self) -> None:
        """Stop as Ctrl-Z does, workers and all, with the terminal as it was; go on from here."""
        self._keyboard.close()
        self._screen.close()
        os.kill(0, signal.SIGTSTP)
        self._screen.open()
        self._keyboard.open()

    def _show(self, progress: Progress) -> None:
        """Draw a frame; where that fails the view ends, and the run goes on."""
        if not self._screen.is_ready:
            return
        began = time.monotonic()
        try:
            self._draw(progress, began)
        except Exception as error:  # noqa: BLE001  whatever it is, no training ends because of its picture
            self._lines.append(f"the live view ended: {error!r}")
            self.close()
        ended = time.monotonic()
        last, self._cost = self._cost, ended - began
        self._next_frame = ended + max(INTERVAL_SECONDS, min(last, self._cost) / LARGEST_SHARE)

    def _draw(self, progress: Progress, now: float) -> None:
        size = self._screen.size
        self._readings.take(progress)
        plotted = self._plotted(progress)
        scene = Scene(
            progress=progress,
            readings=self._readings,
            selection=self._selection,
            curves=plotted,
            chart=self._drawn_chart(plotted, plot_size(size)),
            left=self._pace.left(progress, now),
            has_keys=self._keyboard.is_open,
        )
        self._screen.draw(self._frames.draw(scene, size), size)

    def _plotted(self, progress: Progress) -> list[str]:
        """The metrics with curves, in the order of the Metrics pane."""
        shown = [name for name, how in progress.shown.items() if how.numeric]
        return shown or list(self._curves)

    def _drawn_chart(self, plotted: list[str], size: tuple[int, int] | None) -> Text:
        """The chart of what is chosen, drawn anew only where it would be another."""
        if not plotted or size is None:
            return Text()
        view, name = self._selection.view, plotted[self._selection.metric % len(plotted)]
        state = (name, view, size, len(self._history) if view is View.EPOCHS else len(self._curves[name]))
        if state != self._chart[0]:
            self._chart = state, chart(self._points(name, view), *size)
        return self._chart[1]

    def _points(self, name: str, view: View) -> dict[Split, list[Point]]:
        match view:
            case View.FULL:
                return self._curves[name].full()
            case View.RECENT:
                return self._curves[name].recent()
            case View.EPOCHS:
                series = {split: self._history.series(split, name) for split in Split}
                return {split: reduced(list(values.items()), FULL) for split, values in series.items()}
