"""The writer thread: its priority and signals, and how it ends."""

import os
import signal
import sys
import threading

import pytest
import torch

from stages.runs import Checkpoint, SnapshotWriter

SMALL, LARGE = (Checkpoint([torch.zeros(size)], {}, None) for size in (10, 5 << 20))


@pytest.fixture
def writer():
    """Return a writer, and wait for its thread at the end."""
    writer = SnapshotWriter()
    yield writer
    writer.join()


def test_caller_continues_while_the_checkpoint_is_written(writer):
    go = threading.Event()

    writer.start(lambda _: go.wait(60), SMALL)
    was_writing = writer.is_writing
    go.set()
    writer.join()

    assert (was_writing, writer.is_writing) == (True, False)


def test_large_state_on_a_cpu_is_written_without_a_copy_before_the_caller_continues():
    writer, written = SnapshotWriter(max_copied_bytes=LARGE.model[0].nbytes - 1), []

    writer.prepare(LARGE)
    writer.start(written.append, LARGE)

    assert (written, writer.is_writing, writer._snapshot.nbytes) == ([LARGE], False, 0)
    writer.start(written.append, SMALL)
    writer.join()
    assert torch.equal(written[1].model[0], SMALL.model[0])
    assert written[1].model[0].data_ptr() != SMALL.model[0].data_ptr()


def test_next_write_begins_when_the_previous_one_has_ended(writer):
    written = []
    for number in range(5):
        SMALL.model[0].fill_(number)
        writer.start(lambda copy: written.append(copy.model[0][0].item()), SMALL)

    writer.join()

    assert written == [0, 1, 2, 3, 4]


def test_exception_of_the_thread_is_raised_once(writer):
    writer.start(lambda _: 1 / 0, SMALL)
    writer.join()

    with pytest.raises(ZeroDivisionError):
        writer.raise_error()
    writer.raise_error()


@pytest.mark.parametrize("checkpoint", [SMALL, LARGE], ids=["small", "large"])
def test_prepared_memory_is_that_of_the_first_copy(checkpoint, writer):
    writer.prepare(checkpoint)
    prepared = writer._snapshot.nbytes

    written = []
    writer.start(lambda copy: written.append(copy.model[0].sum().item()), checkpoint)
    writer.join()

    assert prepared == writer._snapshot.nbytes == checkpoint.model[0].nbytes
    assert written == [checkpoint.model[0].sum().item()]


def test_thread_receives_no_signals(writer):
    masks = []

    writer.start(lambda _: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])), SMALL)
    writer.join()

    assert masks[0] >= {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD}
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize(
    ("checkpoint", "platform", "least"), [(SMALL, "linux", 0), (LARGE, "linux", 15), (LARGE, "darwin", 0)]
)
def test_only_a_large_checkpoint_is_written_at_low_priority(checkpoint, platform, least, writer, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    found, own = [], os.getpriority(os.PRIO_PROCESS, 0)

    writer.start(lambda _: found.append(os.getpriority(os.PRIO_PROCESS, 0)), checkpoint)
    writer.join()

    assert found == [max(own, least)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
