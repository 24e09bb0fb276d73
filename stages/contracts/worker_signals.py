"""Signals of loader workers: Ctrl-C goes to every process of a terminal's job, and only the parent acts."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGHUP, SIGINT, SIGTERM, Signals

RESET = (SIGTERM, SIGHUP)
"""Signals of which a worker must not run the handlers of its parent: they print, or save a checkpoint."""


@contextmanager
def blocked(*numbers: Signals) -> Iterator[None]:
    """Block the signals *numbers* in this thread; processes that start meanwhile inherit that and keep it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare_worker(_: int = 0) -> None:
    """Have a worker that started while `RESET` was blocked end at those signals, without a message."""
    for number in RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (SIGINT, *RESET))
