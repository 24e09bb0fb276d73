"""Signal handling of loader workers: Ctrl-C reaches the whole job of a terminal, but only the parent acts."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGHUP, SIGINT, SIGTERM, Signals

RESET = (SIGTERM, SIGHUP)
"""Signals whose handlers a worker must not inherit from its parent, since they print or save."""


@contextmanager
def block_signals(*numbers: Signals) -> Iterator[None]:
    """Block the signals *numbers* in this thread; processes that start in the block inherit the mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare_worker(_: int = 0) -> None:
    """Let a worker that started while `RESET` was blocked exit on those signals, without a message.

    torch has already set its own handler of SIGTERM. It exits with 0 if the parent sent the signal, as it
    does at its own exit; with the default action, the parent would report the worker as killed.
    """
    signal.signal(SIGHUP, signal.SIG_DFL)
    signal.signal(SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (SIGINT, *RESET))
