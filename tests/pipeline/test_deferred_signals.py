"""Signals that end a block, and signals that wait for its end."""

import os
import signal
import subprocess
import threading
from contextlib import suppress
from signal import SIGALRM, SIGHUP, SIGINT, SIGTERM, Signals

import pytest

from pipeline.engine.signals import TERMINATION_SIGNALS, SignalReceived, defer_signals, end_on_signal
from stages.contracts.errors import RunInterruptedError
from stages.contracts.interrupter import Interrupter


class TimedOutError(Exception):
    """What a handler of SIGALRM raises, as Prefect's does."""


@pytest.fixture(autouse=True)
def _handlers():
    """Every handler is the default before a test, and again after it."""
    before = {number: signal.getsignal(number) for number in (*TERMINATION_SIGNALS, SIGALRM)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number):
    """Send *number* to this process; its handler has run when this returns."""
    signal.raise_signal(number)


def handlers():
    return [signal.getsignal(number) for number in (*TERMINATION_SIGNALS, SIGALRM)]


@pytest.mark.parametrize("number", TERMINATION_SIGNALS)
def test_a_signal_ends_the_block_where_it_is(number):
    before, steps = handlers(), []

    with pytest.raises(RunInterruptedError) as caught, end_on_signal():
        steps.append(1)
        send(number)
        steps.append(2)

    assert steps == [1]
    assert caught.value.exit_code == 128 + number
    assert str(caught.value).startswith(f"{Signals(number).name}: ")
    assert handlers() == before


def test_more_signals_do_nothing_while_a_block_ends_except_a_second_sigint():
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


def test_a_block_that_swallows_the_signal_is_interrupted_all_the_same():
    with pytest.raises(RunInterruptedError, match=r"^SIGHUP: "), end_on_signal(), suppress(SignalReceived):
        send(SIGHUP)


def test_an_error_of_the_block_itself_is_raised_as_it_is():
    for block in (end_on_signal, defer_signals):
        with pytest.raises(ValueError, match="ours"), block():
            raise ValueError("ours")


@pytest.mark.parametrize("block", [end_on_signal, defer_signals])
def test_an_ignored_signal_stays_ignored(block):
    signal.signal(SIGHUP, signal.SIG_IGN)

    with block():
        assert signal.getsignal(SIGHUP) is signal.SIG_IGN
        send(SIGHUP)


@pytest.mark.parametrize("block", [end_on_signal, defer_signals])
def test_another_thread_than_the_main_one_installs_nothing(block):
    before, inside = handlers(), []

    def work():
        with block():
            inside.append(handlers())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert inside == [before]


@pytest.mark.parametrize("number", TERMINATION_SIGNALS)
def test_a_held_signal_waits_for_the_end_of_the_block(number):
    before, steps = handlers(), []

    with pytest.raises(RunInterruptedError) as caught, end_on_signal(), defer_signals(with_a_listener()):
        send(number)
        steps.append(1)

    assert steps == [1]
    assert caught.value.exit_code == 128 + number
    assert handlers() == before


def with_a_listener():
    interrupter = Interrupter()
    interrupter.should_stop()
    return interrupter


def test_a_held_signal_stops_the_run_that_listens():
    interrupter = with_a_listener()

    with pytest.raises(RunInterruptedError), defer_signals(interrupter):
        assert not interrupter.should_stop()
        send(SIGTERM)
        assert interrupter.should_stop()
        assert interrupter.message == "SIGTERM"


def test_a_signal_does_not_wait_if_nobody_listens():
    interrupter, steps = Interrupter(), []

    with pytest.raises(RunInterruptedError, match=r"^SIGTERM: "), defer_signals(interrupter):
        send(SIGTERM)
        steps.append(1)

    assert steps == []
    assert not interrupter.should_stop()


def test_a_second_sigint_does_not_wait():
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


def test_what_the_previous_handler_raises_is_raised():
    def time_out(number, frame):
        raise TimedOutError

    signal.signal(SIGALRM, time_out)
    steps = []

    with pytest.raises(TimedOutError), defer_signals():
        send(SIGALRM)
        steps.append(1)

    assert steps == [1]
    assert signal.getsignal(SIGALRM) is time_out


def test_an_alarm_without_a_handler_is_not_held():
    with defer_signals():
        assert signal.getsignal(SIGALRM) is signal.SIG_DFL


def test_signals_act_again_while_they_are_released():
    steps = []

    with pytest.raises(RunInterruptedError), end_on_signal(), defer_signals() as hold:
        try:
            with hold.delivery():
                steps.append("released")
                send(SIGTERM)
                steps.append("not reached")
        finally:
            send(SIGHUP)
            steps.append("held again")

    assert steps == ["released", "held again"]


def test_a_signal_that_waits_acts_before_the_release():
    steps = []

    with pytest.raises(RunInterruptedError, match=r"^SIGTERM: "), defer_signals() as hold:
        send(SIGTERM)
        steps.append("held")
        with hold.delivery():
            steps.append("not reached")

    assert steps == ["held"]


def test_an_error_after_a_held_signal_stays_that_error():
    received = []
    signal.signal(SIGTERM, lambda number, _: received.append(number))

    with pytest.raises(ValueError, match="ours"), defer_signals():
        send(SIGTERM)
        raise ValueError("ours")

    assert received == [SIGTERM]


@pytest.mark.parametrize(
    ("said", "reported"),
    [
        ("stopped after epoch 3", "SIGTERM: stopped after epoch 3"),
        ("SIGTERM: stopped after epoch 3", "SIGTERM: stopped after epoch 3"),
    ],
)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_the_report_of_the_stage_is_kept_with_the_name_of_the_signal(said, reported, is_wrapped):
    with pytest.raises(RunInterruptedError) as caught, defer_signals():
        send(SIGTERM)
        stopped = RunInterruptedError(said, SIGTERM)
        if is_wrapped:
            raise SignalReceived("SIGTERM") from stopped
        raise stopped

    assert str(caught.value) == reported
    assert caught.value.exit_code == 128 + SIGTERM


def test_a_signal_from_another_process_is_held_as_well():
    steps = []

    with pytest.raises(RunInterruptedError), defer_signals():
        subprocess.run(["kill", "-TERM", str(os.getpid())], check=True)
        steps.append(1)

    assert steps == [1]
