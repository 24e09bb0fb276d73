"""The terminal: keys, read without waiting, and the alternate screen, drawn one frame at a time."""

import contextlib
import os
import re
import select
import sys
import termios
import tty
from collections.abc import Sequence
from enum import StrEnum

# Select the alternate screen, hide the cursor, and cut long lines instead of wrapping them, which matters
# between a resize of the terminal and the next frame.
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
HOME = "\x1b[H"
CLEAR = "\x1b[2J"

# An arrow key in either mode of a terminal; any other escape sequence, which is ignored; or a key.
KEY_PATTERN = re.compile(r"\x1b[\[O]([A-D])|\x1b[\[O][0-9;]*[@-~]|([qskc\x1a])")
INCOMPLETE_SEQUENCE = re.compile(r"\x1b([\[O][0-9;]*)?$")


class Key(StrEnum):
    """The keys of the live view; a value is the character sent, for an arrow key after the escape."""

    UP = "A"
    DOWN = "B"
    RIGHT = "C"
    LEFT = "D"
    QUIT = "q"
    STOP = "s"
    KILL = "k"
    CANCEL = "c"
    SUSPEND = "\x1a"


def parse_keys(text: str) -> tuple[list[Key], str]:
    """Return the keys in *text*, and the incomplete escape sequence at its end, or ``""``."""
    cut = INCOMPLETE_SEQUENCE.search(text)
    end = cut.start() if cut else len(text)
    characters = [match[1] or match[2] for match in KEY_PATTERN.finditer(text, 0, end)]
    return [Key(character) for character in characters if character], text[end:]


class Keyboard:
    """The keys typed on standard input.

    Between `open` and `close` the terminal passes on each key immediately and does not echo it. Ctrl-C still
    sends SIGINT. Ctrl-Z is a key, so that the terminal can be restored before the program stops. If standard
    input is not a terminal, or the program runs in the background, there are no keys.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._mode: list[int | list[bytes | int]] = []
        self._rest = ""

    @property
    def is_open(self) -> bool:
        """True if keys are read."""
        return self._descriptor is not None

    def open(self) -> None:
        """Change the mode of the terminal, if standard input is one."""
        if self.is_open or sys.stdin is None or not sys.stdin.isatty():
            return
        descriptor = sys.stdin.fileno()
        if is_foreground(descriptor):
            self._mode = termios.tcgetattr(descriptor)
            self._descriptor = descriptor
            tty.setcbreak(descriptor, termios.TCSANOW)
            mode = termios.tcgetattr(descriptor)
            mode[-1][termios.VSUSP] = bytes([os.fpathconf(descriptor, "PC_VDISABLE")])
            termios.tcsetattr(descriptor, termios.TCSANOW, mode)

    def read(self) -> list[Key]:
        """Return the keys typed since the last call, without waiting."""
        descriptor = self._descriptor
        if descriptor is None or not is_foreground(descriptor):
            return []  # the terminal stops a background program that reads
        if not select.select([descriptor], [], [], 0)[0]:
            return []
        try:
            typed = os.read(descriptor, 1024)
        except OSError:
            typed = b""
        if not typed:
            self._descriptor = None  # the terminal was closed
        keys, self._rest = parse_keys(self._rest + typed.decode(errors="replace"))
        return keys

    def close(self) -> None:
        """Restore the mode of the terminal."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and is_foreground(descriptor):
            with contextlib.suppress(termios.error):  # the terminal was closed
                termios.tcsetattr(descriptor, termios.TCSANOW, self._mode)


class Screen:
    """The alternate screen of the terminal on standard output; it stays closed if there is no terminal."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._frame_size: tuple[int, int] | None = None

    @property
    def is_open(self) -> bool:
        """True if the alternate screen is selected."""
        return self._descriptor is not None

    def open(self) -> None:
        """Select the alternate screen, if this program is in the foreground of a terminal."""
        if self.is_open or sys.stdout is None or not sys.stdout.isatty():
            return
        if not is_foreground(sys.stdout.fileno()):
            return
        sys.stdout.flush()
        self._descriptor = sys.stdout.fileno()
        self._write(ENTER + CLEAR)

    @property
    def is_ready(self) -> bool:
        """True if a write neither blocks (after Ctrl-S, or on a slow line) nor disturbs another program."""
        descriptor = self._descriptor
        if descriptor is None or not is_foreground(descriptor):
            return False
        return bool(select.select([], [descriptor], [], 0)[1])

    @property
    def size(self) -> tuple[int, int]:
        """The current columns and rows; 80 by 24 if the terminal does not report them."""
        columns, rows = os.get_terminal_size(self._descriptor or 0)
        return columns or 80, rows or 24

    def draw(self, lines: Sequence[str], size: tuple[int, int]) -> None:
        """Show a frame, whose *lines* fill *size* (columns, rows), with a single write."""
        start = HOME if size == self._frame_size else HOME + CLEAR
        self._frame_size = size
        self._write(start + "\r\n".join(lines))

    def close(self) -> None:
        """Select the normal screen with its previous content."""
        with contextlib.suppress(OSError):  # the terminal was closed
            self._write(LEAVE)
        self._descriptor, self._frame_size = None, None

    def _write(self, text: str) -> None:
        """Write *text* directly, so that a frame is one write; Python's buffer may contain other output."""
        data = text.encode(errors="replace")
        while data and self._descriptor is not None:
            data = data[os.write(self._descriptor, data) :]


def is_foreground(descriptor: int) -> bool:
    """Return whether this program is in the foreground of the terminal *descriptor*."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return (
            True  # the terminal does not belong to this session, which therefore has no background jobs in it
        )
