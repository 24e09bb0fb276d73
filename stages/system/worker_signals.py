"""Signal handling of loader workers: signals reach the whole job of a terminal, but only the parent acts."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_bool
from signal import SIGHUP, SIGINT, SIGTERM, Signals

RESET = (SIGTERM, SIGHUP)
"""Signals whose handlers a worker must not inherit from its parent, since they print or save."""
PARENT_POLL_SECONDS = 1.0


@contextmanager
def block_signals(*numbers: Signals) -> Iterator[None]:
    """Block the signals *numbers* in this thread; processes that start in the block inherit the mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare_worker(may_exit: c_bool, _: int = 0) -> None:
    """Let a worker that started while `RESET` and SIGINT were blocked run as long as its parent needs it.

    It exits when its parent has exited, and on a signal of `RESET` once the parent has set *may_exit*, in
    shared memory, because it ends its workers. Until then it ignores them: a signal to the whole group must
    not end the workers while the parent still needs batches up to the point at which it stops.

    A handler ignores the signals, because a process that a worker starts would inherit SIG_IGN. torch has
    set a handler of SIGTERM before, which reports the worker as killed.
    """

    def handle(*_: object) -> None:
        if may_exit.value:
            os._exit(0)

    for number in RESET:
        signal.signal(number, handle)
    signal.signal(SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with, args=(os.getppid(),), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (SIGINT, *RESET))


def _exit_with(parent: int) -> None:
    """Exit soon after *parent*, also while a sample is loaded."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    os._exit(1)
