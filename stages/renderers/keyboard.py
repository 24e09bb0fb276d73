"""Keys as they are typed, read without waiting."""

import contextlib
import os
import re
import select
import sys
import termios
import tty
from enum import StrEnum


class Key(StrEnum):
    """What the live view listens to. The value is what the key sends, after the escape of an arrow."""

    UP = "A"
    DOWN = "B"
    RIGHT = "C"
    LEFT = "D"
    QUIT = "q"
    STOP = "s"
    KILL = "k"
    CANCEL = "c"
    SUSPEND = "\x1a"


# An arrow, in either of a terminal's two modes; any other sequence, to be passed over whole; a key.
TYPED = re.compile(r"\x1b[\[O]([A-D])|\x1b[\[O][0-9;]*[@-~]|([qskc\x1a])")
UNFINISHED = re.compile(r"\x1b([\[O][0-9;]*)?$")


def keys_in(typed: str) -> tuple[list[Key], str]:
    """The keys in *typed*, and what is at its end of a sequence that is still to come."""
    cut = UNFINISHED.search(typed)
    end = cut.start() if cut else len(typed)
    found = [match[1] or match[2] for match in TYPED.finditer(typed, 0, end)]
    return [Key(each) for each in found if each], typed[end:]


class Keyboard:
    """Standard input, where that is a terminal that is ours to read; else there are never any keys.

    Between `open` and `close` the terminal hands over each key at once and does not echo it. Ctrl-C does
    what it always does; Ctrl-Z is a key, so that who reads it can tidy up first.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._mode: list[int | list[bytes | int]] = []
        self._rest = ""

    @property
    def is_open(self) -> bool:
        """Whether keys are heard."""
        return self._descriptor is not None

    def open(self) -> None:
        """Listen, if there is a terminal."""
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
        """The keys typed since the last time."""
        descriptor = self._descriptor
        if descriptor is None or not is_foreground(descriptor):
            return []  # reading would stop a program in the background
        if not select.select([descriptor], [], [], 0)[0]:
            return []
        try:
            typed = os.read(descriptor, 1024)
        except OSError:
            typed = b""
        if not typed:
            self._descriptor = None  # the terminal is gone
        found, self._rest = keys_in(self._rest + typed.decode(errors="replace"))
        return found

    def close(self) -> None:
        """The terminal is as it was."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and is_foreground(descriptor):
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(descriptor, termios.TCSANOW, self._mode)


def is_foreground(descriptor: int) -> bool:
    """Whether this program is the one that the terminal's user deals with."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True  # the terminal is not this session's, so the shell's jobs do not matter to it
