"""The writer of everything that commands print: text from files and from git must not control a terminal."""

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from stages.contracts.text import hide_passwords, replace_unprintable

KEPT = "\n\t"
"""Characters that are not printable and that a text of several lines may have."""
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
"""Matches what sets a color, which messages of DVC have."""


def print_line(text: str, file: IO[str] | None = None) -> None:
    """Write *text* as one line to *file*, as `print_text` does: line breaks in it are replaced too."""
    print_text(replace_unprintable(text, keep="\t"), file)


def print_text(text: str, file: IO[str] | None = None, *, end: str = "\n") -> None:
    """Write *text*, which may have several lines, and *end* to *file*, by default standard output; flush it.

    Characters that control a terminal are replaced, as are passwords in URLs, and characters that *file*
    cannot encode. As with `print`, a program without standard output writes nothing.
    """
    target = sys.stdout if file is None else file
    if target is None:
        return
    cleaned = clean(f"{text}{end}")
    encoding = getattr(target, "encoding", None) or "utf-8"
    target.write(cleaned.encode(encoding, "replace").decode(encoding))
    target.flush()


def print_error(text: str) -> None:
    """Write *text* and a line break to standard error, as `print_text` does."""
    print_text(text, sys.stderr)


def open_closed_streams() -> None:
    """Open ``/dev/null`` in place of each standard stream that is closed, as after ``>&-``.

    The next file that is opened would otherwise have its number, and receive what child processes print.
    """
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if vars(sys)[name] is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115  the lowest free number
            os.set_inheritable(stream.fileno(), True)  # noqa: FBT003
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def discard_output() -> None:
    """Discard what is still written to standard output and standard error, whose reader has closed them.

    Python would otherwise fail, and print that, when it flushes them at its exit.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)


def clean(text: str) -> str:
    """Return *text* without characters that control a terminal, and without passwords in URLs."""
    return hide_passwords(replace_unprintable(text, keep=KEPT))


@contextmanager
def clean_log_records() -> Iterator[None]:
    """Make every log record in the block, of any package, a `CleanRecord`."""
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(CleanRecord)
    try:
        yield
    finally:
        logging.setLogRecordFactory(before)


class CleanRecord(logging.LogRecord):
    """A log record whose message is `clean` and without colors."""

    def getMessage(self) -> str:  # noqa: N802  the name in logging
        """Return the message with its arguments."""
        return clean(_COLOR.sub("", super().getMessage()))
