"""The launcher of ranks: one process for each device of a run, started through torch's elastic agent.

torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, ...) is set in each process. The launcher has no
transport of its own and reads no checkpoint: the ranks agree on the step at which they stop, and save.
"""

import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from pipeline.engine.rank_process import build_failure, build_interruption, find_failure, find_stop, log_of
from stages.contracts.errors import RunInterruptedError, StageError
from stages.contracts.interrupter import Interrupter
from stages.system.processes import module_command

log = logging.getLogger(__name__)
AGENT_LOGGERS = ("torch.distributed.elastic", "torchelastic-events-null")
POLL_SECONDS = 0.1
COPY_SECONDS = 0.5
KILL_SECONDS = 10.0
"""Limit for killed ranks to exit; a process in an uninterruptible system call exits later."""
_SILENT = logging.NullHandler()


def run_ranks(
    command: Sequence[str],
    devices: Sequence[str],
    log_folder: Path,
    interrupter: Interrupter,
    *,
    max_restarts: int = 0,
) -> None:
    """Run *command* once for each of *devices*, and return when all of these ranks have exited with code 0.

    Rank 0 writes to the output of this process, also if ``sys.stdout`` is replaced, and rank N to ``N.log``
    in *log_folder*, whose previous files are removed. A stop that *interrupter* requests is sent to all ranks
    as SIGTERM, and they save without a time limit. If one rank fails, the others are ended within 10 seconds.
    If this process is killed, so are the ranks.

    Args:
        command: The program of a rank with its arguments.
        devices: The name of each rank's device, for messages.
        log_folder: The folder for the logs of the ranks.
        interrupter: The flag that stops the run.
        max_restarts: How often all ranks start again after a failure.

    Raises:
        StageError: A rank failed. The message names the first one and its error.
        RunInterruptedError: The ranks were stopped and have saved.
    """
    for restart in range(max_restarts + 1):
        try:
            _run_group(command, devices, log_folder, interrupter)
        except RunInterruptedError:
            raise
        except StageError as error:
            if restart == max_restarts or interrupter.should_stop():
                raise
            log.warning("%s\nrestarting all ranks (restart %d of %d)", error, restart + 1, max_restarts)
        else:
            return


def _run_group(
    command: Sequence[str], devices: Sequence[str], folder: Path, interrupter: Interrupter
) -> None:
    """Run the ranks once, and raise the error that their exits mean."""
    _empty(folder)
    output = None if sys.stdout is sys.__stdout__ else sys.stdout  # child processes do not inherit the latter
    first = "1" if output is None else "0"
    start = module_command(
        "pipeline.engine.rank_process", str(os.getpid()), str(folder.absolute()), first, *command
    )
    with _without_logs_of_torch(), _copy_text(log_of(folder, 0), output):
        agent = import_module("pipeline.engine.rank_agent").RankAgent(start, len(devices), folder)
        _run(agent, interrupter)
    if agent.error:
        raise StageError(f"the ranks could not be started: {agent.error}") from agent.error
    if failed := find_failure(agent.exits):
        raise build_failure(failed, devices[failed.rank], folder)
    if stopped := find_stop(agent.exits):
        raise build_interruption(stopped)


def _run(agent: Any, interrupter: Interrupter) -> None:
    """Run *agent* in a thread of its own, and forward a stop. An exception in the wait kills the ranks."""
    thread = threading.Thread(target=agent.run_ranks, name="ranks", daemon=True)
    try:
        if interrupter.should_stop():  # the first call: from now on, signals are left to this function
            agent.stop_ranks()
        thread.start()
        while thread.is_alive():
            thread.join(POLL_SECONDS)
            if interrupter.should_stop():
                agent.stop_ranks()
    finally:
        agent.kill_ranks()
        thread.join(KILL_SECONDS)


def _empty(folder: Path) -> None:
    """Create *folder*, and remove the files of the previous ranks from it."""
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in ("*.log", "*.error.json"):
        for path in folder.glob(pattern):
            path.unlink()


@contextmanager
def _copy_text(log: Path, output: TextIO | None) -> Iterator[None]:
    """Copy the text that is written to *log* in the block to *output*, if any, in a thread of its own."""
    if output is None:
        yield
        return
    log.touch()
    has_ended = threading.Event()

    def copy() -> None:
        with log.open(encoding="utf-8", errors="replace") as text:
            while not has_ended.wait(COPY_SECONDS):
                output.write(text.read())
            output.write(text.read())

    thread = threading.Thread(target=copy, name="output of rank 0", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


@contextmanager
def _without_logs_of_torch() -> Iterator[None]:
    """Keep the log records of the agent, about signals and exit codes, from the handlers of this process."""
    loggers = [logging.getLogger(name) for name in AGENT_LOGGERS]
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(_SILENT)  # without any handler, Python would print warnings
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagate in zip(loggers, before, strict=True):
            logger.removeHandler(_SILENT)
            logger.propagate = propagate
