"""The terminal's other screen, drawn on a frame at a time."""

import contextlib
import os
import select
import sys
from collections.abc import Sequence

from stages.renderers.keyboard import is_foreground

# The other screen, no cursor, and what is too long for a line is cut, not wrapped: at the moment of a resize.
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
HOME = "\x1b[H"
CLEAR = "\x1b[2J"


class Screen:
    """Standard output, where that is a terminal; else it stays closed."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._drawn: tuple[int, int] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the other screen is the one that shows."""
        return self._descriptor is not None

    def open(self) -> None:
        """Change to the other screen, if there is one and it is ours to draw on."""
        if self.is_open or not sys.stdout.isatty() or not is_foreground(sys.stdout.fileno()):
            return
        sys.stdout.flush()
        self._descriptor = sys.stdout.fileno()
        self._write(ENTER + CLEAR)

    @property
    def is_ready(self) -> bool:
        """Whether drawing would neither wait (for Ctrl-Q, a slow line) nor disturb another program."""
        descriptor = self._descriptor
        if descriptor is None or not is_foreground(descriptor):
            return False
        return bool(select.select([], [descriptor], [], 0)[1])

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows, as they are now; 80 by 24 where the terminal does not know."""
        columns, rows = os.get_terminal_size(self._descriptor or 0)
        return columns or 80, rows or 24

    def draw(self, lines: Sequence[str], size: tuple[int, int]) -> None:
        """Show *lines*, which fill *size*, all in one write."""
        start = HOME if size == self._drawn else HOME + CLEAR
        self._drawn = size
        self._write(start + "\r\n".join(lines))

    def close(self) -> None:
        """Back to the screen of before, with all that stood on it."""
        with contextlib.suppress(OSError):  # the terminal is gone
            self._write(LEAVE)
        self._descriptor, self._drawn = None, None

    def _write(self, text: str) -> None:
        """Past Python's buffer: what stands in that is not ours, and one frame is one write."""
        data = text.encode(errors="replace")
        while data and self._descriptor is not None:
            data = data[os.write(self._descriptor, data) :]
