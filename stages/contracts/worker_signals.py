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
    """Have a worker that started while `RESET` was blocked end at those signals, without a message.

    torch has set its own handler of SIGTERM by now. It exits with 0 if the parent sent the signal, as at its
    own exit; with the default action the parent would report the worker as killed.
    """
    signal.signal(SIGHUP, signal.SIG_DFL)
    signal.signal(SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (SIGINT, *RESET))
