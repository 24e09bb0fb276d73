"""Signal handling: a signal ends a command at once, or is deferred until a critical section is complete.

The handlers only set a flag or raise, because they run between any two instructions of the program. They are
installed in the main thread only, leave an ignored signal ignored (``nohup``), and are removed at the end.
The kernel can send a signal when the parent process exits.
"""

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from signal import SIGALRM, SIGHUP, SIGINT, SIGTERM, Signals
from typing import Any

from stages.contracts.errors import RunInterruptedError
from stages.contracts.events import Interrupter

TERMINATION_SIGNALS = (SIGTERM, SIGINT, SIGHUP)

Handler = Callable[[int, Any], Any]
_PR_SET_PDEATHSIG = 1


class SignalReceived(BaseException):
    """A signal that ends a block. It is not an `Exception`, so that no handler of errors catches it."""


@contextmanager
def end_on_signal() -> Iterator[None]:
    """End the block at the first signal; later signals have no effect, except a second SIGINT.

    Raises `RunInterruptedError` after a signal, even if the block caught `SignalReceived`.
    """
    seen: list[int] = []

    def end(number: int, _: Any) -> None:
        seen.append(number)
        if len(seen) == 1 or _is_second_interrupt(seen):
            raise SignalReceived(Signals(number).name)

    before = _install(end, TERMINATION_SIGNALS)
    try:
        yield
    except BaseException as error:
        if seen:
            raise _build_error(seen[0], error) from error
        raise
    finally:
        _restore(before)
    if seen:
        raise _build_error(seen[0])


class DeferredSignals:
    """The signals that `defer_signals` defers."""

    def __init__(self, interrupter: Interrupter | None) -> None:
        self._interrupter = interrupter
        self._seen: list[int] = []
        self._before: dict[int, Any] = {}
        self._is_delivered = False

    @contextmanager
    def delivery(self) -> Iterator[None]:
        """Deliver signals to the previous handlers in the block, beginning with a deferred one."""
        self.stop()
        try:
            self.deliver_pending()
            yield
        finally:
            self.start()

    def start(self) -> None:
        """Defer signals from now on, and SIGALRM too if it has a handler, such as Prefect's for a timeout."""
        is_timed = callable(signal.getsignal(SIGALRM))
        self._before = _install(
            self._receive, (*TERMINATION_SIGNALS, SIGALRM) if is_timed else TERMINATION_SIGNALS
        )

    def stop(self) -> None:
        """Restore the previous handlers."""
        _restore(self._before)

    def deliver_pending(self, error: BaseException | None = None) -> None:
        """Pass the first deferred signal, if any, to the previous handler, and raise an error for it."""
        if self._seen and not self._is_delivered:
            self._deliver(self._seen[0])
        if self._seen and (error is None or isinstance(error, SignalReceived | RunInterruptedError)):
            raise _build_error(self._seen[0], error) from error

    def _receive(self, number: int, _: Any) -> None:
        self._seen.append(number)
        listens = self._interrupter is None or self._interrupter.has_listener()
        if not listens or _is_second_interrupt(self._seen):
            self._deliver(number)
            raise SignalReceived(Signals(number).name)
        if self._interrupter:
            self._interrupter.stop(Signals(number).name)

    def _deliver(self, number: int) -> None:
        self._is_delivered = True
        handler = self._before.get(number)
        if callable(handler):
            handler(number, None)


@contextmanager
def defer_signals(interrupter: Interrupter | None = None) -> Iterator[DeferredSignals]:
    """Defer signals until the block ends, and then pass the first one to the previous handler.

    With an *interrupter*, signals are deferred only if it has a listener, and the interrupter is notified at
    once. A second SIGINT is never deferred. Raises the exception of the previous handler, for example
    Prefect's, and `RunInterruptedError` if that handler raises none.
    """
    hold = DeferredSignals(interrupter)
    hold.start()
    try:
        yield hold
    except BaseException as error:
        hold.stop()
        hold.deliver_pending(error)
        raise
    hold.stop()
    hold.deliver_pending()


def _build_error(number: int, error: BaseException | None = None) -> RunInterruptedError:
    """Return the error for signal *number*, with the message of the stage that raised *error*."""
    name, cause = Signals(number).name, error
    while cause is not None and not isinstance(cause, RunInterruptedError):
        cause = cause.__cause__ or cause.__context__
    message = str(cause) if cause else "unfinished work is not recorded. Run the same command again to resume"
    return RunInterruptedError(message if message.startswith(name) else f"{name}: {message}", number)


def _is_second_interrupt(seen: Sequence[int]) -> bool:
    return seen[-1] == SIGINT and seen.count(SIGINT) > 1


def _install(handler: Handler, numbers: Sequence[int]) -> dict[int, Any]:
    """Install *handler* for the signals *numbers*, and return the previous handlers."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    return before


def _restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


def request_parent_death_signal(number: int) -> None:
    """Have the kernel send signal *number* when the thread that started this process ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
