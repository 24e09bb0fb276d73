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

ENDING = (SIGTERM, SIGINT, SIGHUP)

Handler = Callable[[int, Any], Any]


class Ended(BaseException):
    """A signal ended what ran. It is no `Exception`, so that nothing on the way takes it for a mistake."""


@contextmanager
def ending() -> Iterator[None]:
    """The first signal ends the block where it stands; more of them do nothing, but for a second SIGINT.

    Raises `RunInterruptedError` then, whatever became of the block.
    """
    seen: list[int] = []

    def end(number: int, _: Any) -> None:
        seen.append(number)
        if len(seen) == 1 or _is_impatient(seen):
            raise Ended(Signals(number).name)

    before = _install(end, ENDING)
    try:
        yield
    except BaseException as error:
        if seen:
            raise _interrupted(seen[0], error) from error
        raise
    finally:
        _put_back(before)
    if seen:
        raise _interrupted(seen[0])


class Held:
    """Signals that wait: see `held`."""

    def __init__(self, interrupter: Interrupter | None) -> None:
        self._interrupter = interrupter
        self._seen: list[int] = []
        self._before: dict[int, Any] = {}
        self._passed = False

    @contextmanager
    def released(self) -> Iterator[None]:
        """Signals do again what they did before; one that waits does it now."""
        self.stop()
        try:
            self.pass_on_what_waits()
            yield
        finally:
            self.start()

    def start(self) -> None:
        """Have signals wait from now on. SIGALRM too, where it means something: a time-out of Prefect's."""
        is_timed = callable(signal.getsignal(SIGALRM))
        self._before = _install(self._take, (*ENDING, SIGALRM) if is_timed else ENDING)

    def stop(self) -> None:
        """Put back the handlers of before."""
        _put_back(self._before)

    def pass_on_what_waits(self, error: BaseException | None = None) -> None:
        """Raise what the handler of before raises for the first signal that came; nothing, where none did."""
        if self._seen and not self._passed:
            self._pass_on(self._seen[0])
        if self._seen and (error is None or isinstance(error, Ended | RunInterruptedError)):
            raise _interrupted(self._seen[0], error) from error

    def _take(self, number: int, _: Any) -> None:
        self._seen.append(number)
        listens = self._interrupter is None or self._interrupter.has_listener()
        if not listens or _is_impatient(self._seen):
            self._pass_on(number)
            raise Ended(Signals(number).name)
        if self._interrupter:
            self._interrupter.stop(Signals(number).name)

    def _pass_on(self, number: int) -> None:
        self._passed = True
        handler = self._before.get(number)
        if callable(handler):
            handler(number, None)


@contextmanager
def held(interrupter: Interrupter | None = None) -> Iterator[Held]:
    """Signals wait until the block ends, and then get the handlers of before: the block is not broken off.

    With an *interrupter* they wait only once somebody listens to it, and it is told at once.
    A second SIGINT never waits. Raises what the handler of before raises (Prefect's own, for one),
    and `RunInterruptedError` where that raises nothing.
    """
    hold = Held(interrupter)
    hold.start()
    try:
        yield hold
    except BaseException as error:
        hold.stop()
        hold.pass_on_what_waits(error)
        raise
    hold.stop()
    hold.pass_on_what_waits()


def _interrupted(number: int, error: BaseException | None = None) -> RunInterruptedError:
    """*number* as an error, with what the stage that *error* comes from said of it."""
    name, cause = Signals(number).name, error
    while cause is not None and not isinstance(cause, RunInterruptedError):
        cause = cause.__cause__ or cause.__context__
    said = str(cause) if cause else "what was in the making is not recorded; the same command goes on"
    return RunInterruptedError(said if said.startswith(name) else f"{name}: {said}", number)


def _is_impatient(seen: Sequence[int]) -> bool:
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


def _put_back(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
