"""Signal handling: signals that end a block at once, and signals that are deferred until it ends."""

import os
import signal
import subprocess
import threading
from contextlib import suppress
from signal import SIGALRM, SIGHUP, SIGINT, SIGTERM, Signals

import pytest

from pipeline.engine.signals import TERMINATION_SIGNALS, SignalReceived, defer_signals, end_on_signal
from stages.contracts.errors import RunInterruptedError
from stages.contracts.events import Interrupter


class TimedOutError(Exception):
    """The exception that a handler of SIGALRM raises, like Prefect's handler of a timeout."""


@pytest.fixture(autouse=True)
def _default_handlers():
    """Give each test the default handlers, and restore the previous ones after it."""
    before = {number: signal.getsignal(number) for number in (*TERMINATION_SIGNALS, SIGALRM)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number):
    """Send signal *number* to this process, and return after its handler has run."""
    signal.raise_signal(number)


def handlers():
    """Return the current handler of each signal that the blocks may replace."""
    return [signal.getsignal(number) for number in (*TERMINATION_SIGNALS, SIGALRM)]


@pytest.mark.parametrize("number", TERMINATION_SIGNALS)
def test_signal_ends_the_block_at_once(number):
    before, steps = handlers(), []

    with pytest.raises(RunInterruptedError) as caught, end_on_signal():
        steps.append(1)
        send(number)
        steps.append(2)

    assert steps == [1]
    assert caught.value.exit_code == 128 + number
    assert str(caught.value).startswith(f"{Signals(number).name}: ")
    assert handlers() == before


def test_only_a_second_sigint_interrupts_the_cleanup_of_a_block():
    cleaned = []

    def clean(*numbers):
        try:
            send(numbers[0])
        finally:
            for number in numbers[1:]:
                send(number)
            cleaned.append(numbers)

    for numbers in ((SIGTERM, SIGTERM), (SIGTERM, SIGINT), (SIGINT, SIGTERM), (SIGINT, SIGINT)):
        with pytest.raises(RunInterruptedError) as caught, end_on_signal():
            clean(*numbers)
        assert caught.value.exit_code == 128 + numbers[0]

    assert cleaned == [(SIGTERM, SIGTERM), (SIGTERM, SIGINT), (SIGINT, SIGTERM)]


def test_block_that_suppresses_the_signal_is_still_interrupted():
    with pytest.raises(RunInterruptedError, match=r"^SIGHUP: "), end_on_signal(), suppress(SignalReceived):
        send(SIGHUP)


def test_handler_of_errors_in_the_block_does_not_catch_the_signal():
    caught = []

    with pytest.raises(RunInterruptedError), end_on_signal():
        try:
            send(SIGTERM)
        except Exception as error:  # noqa: BLE001  as user code may
            caught.append(error)

    assert caught == []


def test_error_of_the_block_is_raised_unchanged():
    for block in (end_on_signal, defer_signals):
        with pytest.raises(ValueError, match="of the block"), block():
            raise ValueError("of the block")


@pytest.mark.parametrize("block", [end_on_signal, defer_signals])
def test_ignored_signal_stays_ignored(block):
    signal.signal(SIGHUP, signal.SIG_IGN)

    with block():
        assert signal.getsignal(SIGHUP) is signal.SIG_IGN
        send(SIGHUP)


@pytest.mark.parametrize("block", [end_on_signal, defer_signals])
def test_no_handler_is_installed_outside_the_main_thread(block):
    before, inside = handlers(), []

    def work():
        with block():
            inside.append(handlers())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert inside == [before]


@pytest.mark.parametrize("number", TERMINATION_SIGNALS)
def test_deferred_signal_acts_at_the_end_of_the_block(number):
    before, steps = handlers(), []

    with (
        pytest.raises(RunInterruptedError) as caught,
        end_on_signal(),
        defer_signals(interrupter_with_listener()),
    ):
        send(number)
        steps.append(1)

    assert steps == [1]
    assert caught.value.exit_code == 128 + number
    assert handlers() == before


def interrupter_with_listener():
    """Return an interrupter that a run polls, so that signals are deferred."""
    interrupter = Interrupter()
    interrupter.should_stop()
    return interrupter


def test_deferred_signal_notifies_the_interrupter_at_once():
    interrupter = interrupter_with_listener()

    with pytest.raises(RunInterruptedError), defer_signals(interrupter):
        assert not interrupter.should_stop()
        send(SIGTERM)
        assert interrupter.should_stop()
        assert interrupter.message == "SIGTERM"


def test_signal_is_not_deferred_if_the_interrupter_has_no_listener():
    interrupter, steps = Interrupter(), []

    with pytest.raises(RunInterruptedError, match=r"^SIGTERM: "), defer_signals(interrupter):
        send(SIGTERM)
        steps.append(1)

    assert steps == []
    assert not interrupter.should_stop()


def test_second_sigint_is_not_deferred():
    steps = []

    with pytest.raises(RunInterruptedError), defer_signals():
        send(SIGTERM)
        steps.append(1)
        send(SIGINT)
        steps.append(2)
        send(SIGINT)
        steps.append(3)

    assert steps == [1, 2]


def test_the_previous_handler_receives_the_first_signal_once():
    received = []
    signal.signal(SIGTERM, lambda number, _: received.append(number))
    signal.signal(SIGHUP, lambda number, _: received.append(number))

    with pytest.raises(RunInterruptedError) as caught, defer_signals():
        send(SIGTERM)
        send(SIGHUP)
        assert received == []

    assert received == [SIGTERM]
    assert caught.value.exit_code == 128 + SIGTERM


def test_exception_of_the_previous_handler_is_raised():
    def time_out(number, frame):
        raise TimedOutError

    signal.signal(SIGALRM, time_out)
    steps = []

    with pytest.raises(TimedOutError), defer_signals():
        send(SIGALRM)
        steps.append(1)

    assert steps == [1]
    assert signal.getsignal(SIGALRM) is time_out


def test_sigalrm_without_a_handler_is_not_deferred():
    with defer_signals():
        assert signal.getsignal(SIGALRM) is signal.SIG_DFL


def test_signals_act_at_once_in_a_delivery_block():
    steps = []

    with pytest.raises(RunInterruptedError), end_on_signal(), defer_signals() as signals:
        try:
            with signals.delivery():
                steps.append("delivering")
                send(SIGTERM)
                steps.append("not reached")
        finally:
            send(SIGHUP)
            steps.append("deferring again")

    assert steps == ["delivering", "deferring again"]


def test_pending_signal_acts_before_a_delivery_block_begins():
    steps = []

    with pytest.raises(RunInterruptedError, match=r"^SIGTERM: "), defer_signals() as signals:
        send(SIGTERM)
        steps.append("deferred")
        with signals.delivery():
            steps.append("not reached")

    assert steps == ["deferred"]


def test_error_after_a_deferred_signal_is_raised_unchanged():
    received = []
    signal.signal(SIGTERM, lambda number, _: received.append(number))

    with pytest.raises(ValueError, match="of the block"), defer_signals():
        send(SIGTERM)
        raise ValueError("of the block")

    assert received == [SIGTERM]


@pytest.mark.parametrize(
    ("message", "reported"),
    [
        ("stopped after epoch 3", "SIGTERM: stopped after epoch 3"),
        ("SIGTERM: stopped after epoch 3", "SIGTERM: stopped after epoch 3"),
    ],
)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_message_of_the_stage_is_kept_and_names_the_signal(message, reported, is_wrapped):
    with pytest.raises(RunInterruptedError) as caught, defer_signals():
        send(SIGTERM)
        stopped = RunInterruptedError(message, SIGTERM)
        if is_wrapped:
            raise SignalReceived("SIGTERM") from stopped
        raise stopped

    assert str(caught.value) == reported
    assert caught.value.exit_code == 128 + SIGTERM


def test_signal_from_another_process_is_deferred():
    steps = []

    with pytest.raises(RunInterruptedError), defer_signals():
        subprocess.run(["kill", "-TERM", str(os.getpid())], check=True)
        steps.append(1)

    assert steps == [1]
