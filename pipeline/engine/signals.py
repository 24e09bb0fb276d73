"""What a signal does: it ends a command at once, or waits until what must not be broken off is done.

The handlers only set a flag or raise, because they run between any two steps of the program. They stand in
the main thread alone, leave an ignored signal ignored (``nohup``), and are put back at the end.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from signal import SIGALRM, SIGHUP, SIGINT, SIGTERM, Signals
from typing import Any

from stages.contracts.errors import RunInterruptedError
from stages.contracts.interrupter import Interrupter

TERMINATION_SIGNALS = (SIGTERM, SIGINT, SIGHUP)

Handler = Callable[[int, Any], Any]


class SignalReceived(BaseException):
    """A signal ended what ran. It is no `Exception`, so that nothing on the way takes it for a mistake."""


@contextmanager
def end_on_signal() -> Iterator[None]:
    """The first signal ends the block where it stands; more of them do nothing, but for a second SIGINT.

    Raises `RunInterruptedError` then, whatever became of the block.
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
    """Signals that wait: see `defer_signals`."""

    def __init__(self, interrupter: Interrupter | None) -> None:
        self._interrupter = interrupter
        self._seen: list[int] = []
        self._before: dict[int, Any] = {}
        self._is_delivered = False

    @contextmanager
    def delivery(self) -> Iterator[None]:
        """Signals do again what they did before; one that waits does it now."""
        self.stop()
        try:
            self.deliver_pending()
            yield
        finally:
            self.start()

    def start(self) -> None:
        """Have signals wait from now on. SIGALRM too, where it means something: a time-out of Prefect's."""
        is_timed = callable(signal.getsignal(SIGALRM))
        self._before = _install(
            self._receive, (*TERMINATION_SIGNALS, SIGALRM) if is_timed else TERMINATION_SIGNALS
        )

    def stop(self) -> None:
        """Put back the handlers of before."""
        _restore(self._before)

    def deliver_pending(self, error: BaseException | None = None) -> None:
        """Raise what the handler of before raises for the first signal that came; nothing, where none did."""
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
    """Signals wait until the block ends, and then get the handlers of before: the block is not broken off.

    With an *interrupter* they wait only once somebody listens to it, and it is told at once.
    A second SIGINT never waits. Raises what the handler of before raises (Prefect's own, for one),
    and `RunInterruptedError` where that raises nothing.
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
    """*number* as an error, with what the stage that *error* comes from said of it."""
    name, cause = Signals(number).name, error
    while cause is not None and not isinstance(cause, RunInterruptedError):
        cause = cause.__cause__ or cause.__context__
    said = str(cause) if cause else "what was in the making is not recorded; the same command goes on"
    return RunInterruptedError(said if said.startswith(name) else f"{name}: {said}", number)


def _is_second_interrupt(seen: Sequence[int]) -> bool:
    return seen[-1] == SIGINT and seen.count(SIGINT) > 1


def _install(handler: Handler, numbers: Sequence[int]) -> dict[int, Any]:
    """*handler* for *numbers*; what was there before."""
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
