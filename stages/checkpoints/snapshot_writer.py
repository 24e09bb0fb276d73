"""A thread that writes checkpoints while training continues."""

import os
import signal
import threading
from collections.abc import Callable
from functools import partial

from stages.checkpoints.checkpointer import Checkpoint
from stages.checkpoints.host_snapshot import HostSnapshot
from stages.system.worker_signals import block_signals

NICENESS = 15
"""Niceness of the thread, and of those that it starts: training has priority."""
MAX_URGENT_BYTES = 16 << 20
"""Bytes up to which the niceness stays: a small write slows nothing, and on a busy machine it would wait."""
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


class SnapshotWriter:
    """A writer of checkpoints, one at a time, from a copy of their tensors and in its own thread.

    The thread receives no signals, so that handlers interrupt the main thread while it waits.
    """

    def __init__(self) -> None:
        self._snapshot = HostSnapshot()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_writing(self) -> bool:
        """True until the write that was started last has ended."""
        return self._thread is not None and self._thread.is_alive()

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Provide the memory for a copy of *checkpoint* in the thread, unless there is enough.

        Call this before the first `start` needs it.
        """
        self.join()
        if self._snapshot.allocate(checkpoint):
            self._start_thread(self._snapshot.touch)

    def start(self, write: Callable[[Checkpoint], None], checkpoint: Checkpoint) -> None:
        """Copy *checkpoint* and call *write* with the copy in a thread, after the previous write has ended.

        Raises `RecordError` if no record can hold one of the tensors.
        """
        self.prepare(checkpoint)
        self.join()
        copy = self._snapshot.copy(checkpoint)
        self._start_thread(partial(self._write, write, copy))

    def join(self) -> None:
        """Wait until the write has ended. A handler of a signal may raise an exception here."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def raise_error(self) -> None:
        """Raise what the last write raised, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def release(self) -> None:
        """Free the memory of the copy, after the write has ended."""
        self._snapshot = HostSnapshot()

    def _start_thread(self, action: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(action,), name="checkpoint-writer")
        with block_signals(*(signal.valid_signals() - FAULTS)):
            self._thread.start()

    def _run(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  `raise_error` raises it in the thread that trains
            self._error = error

    def _write(self, write: Callable[[Checkpoint], None], copy: Checkpoint) -> None:
        if self._snapshot.nbytes > MAX_URGENT_BYTES:
            _lower_priority()
        self._snapshot.synchronize()
        write(copy)


def _lower_priority() -> None:
    """Raise the niceness of this thread, which on Linux is its own, unless it is higher already."""
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
