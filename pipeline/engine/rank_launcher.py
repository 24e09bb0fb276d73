"""The launcher of ranks: one process for each device of a run.

torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, ...) is set in each process. The launcher has no
transport of its own and reads no checkpoint: the ranks agree on the step at which they stop, and save. The
run of `fit` is displayed from the heartbeat and the logs in its store.
"""

import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any, TextIO

from pipeline.engine.error_reports import REPORT_VARIABLE, read_report
from pipeline.engine.process_tree import open_process
from pipeline.engine.rank_process import RankExit, build_failure, build_interruption, log_of, report_of
from stages import fit, metrics, runs
from stages.contracts.errors import DataError, RunInterruptedError, StageError
from stages.contracts.events import Interrupter, Progress, Renderer, Renderers, Shown
from stages.contracts.history import History, Split, Value
from stages.learner import from_params
from stages.loggers.log_files import read_epoch
from stages.params.fit_params import FitConfig, FitPaths
from stages.runs.file_names import CHECKPOINT_FOLDER, list_epochs
from stages.runs.layout import ranks_of
from stages.runs.overview import read_beat
from stages.system.file_lock import open_lock
from stages.system.processes import block_signals, module_command

log = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Environment variables with the interface on which the ranks listen for each other."""
GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL for the other ranks after one has failed; most hang in a collective."""
LOST_SECONDS = 3.0
"""Time for the rank that failed to report its error, if another one has lost the connection to it."""
POLL_MILLISECONDS = 100
COPY_SECONDS = 0.5
KILL_SECONDS = 10.0
"""Limit for killed ranks to exit; a process in an uninterruptible system call exits later."""
INTERVAL_SECONDS = 1.0
"""Time between two readings of the heartbeat."""


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
    folder.mkdir(parents=True, exist_ok=True)
    for path in (*folder.glob("*.log"), *folder.glob("*.error.json")):  # of the previous ranks
        path.unlink()
    output = None if sys.stdout is sys.__stdout__ else sys.stdout  # child processes do not inherit the latter
    with _copy_text(log_of(folder, 0), output):
        ranks = _Ranks(folder.absolute())
        ranks.run(command, len(devices), interrupter, is_copied=output is not None)
    if error := build_failure(ranks.exits, devices, folder) or build_interruption(ranks.exits):
        raise error


def open_local_store() -> Any:
    """Return a store of torch, to which ranks connect, on a free port of the loopback interface.

    Torch ignores the address of a store and listens on all interfaces, unless it gets an open socket.
    """
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        handle = listener.detach()  # the store closes it
    distributed: Any = import_module("torch.distributed")
    return distributed.TCPStore(
        LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=handle
    )


class _Ranks:
    """The processes of the ranks, each of which leads a process group.

    Ranks that save have the time they need, and after a failure the others are ended soon. torchrun ends all
    ranks as soon as one exits with a code other than 0, and kills them 30 s later.
    """

    def __init__(self, folder: Path) -> None:
        self.exits: list[RankExit] = []
        """The exits of the ranks, in their order."""
        self._folder = folder
        self._running: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        """By file descriptor: rank and process."""
        self._sent: set[int] = set()
        self._deadline: float | None = None

    def run(self, command: Sequence[str], count: int, interrupter: Interrupter, *, is_copied: bool) -> None:
        """Run *command* in *count* ranks until all have exited; rank 0 writes to a log if that *is_copied*.

        A stop is sent to them once, and an exception kills them.
        """
        store = open_local_store()
        variables = {
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",  # as in torchrun, unless it is set
            **dict.fromkeys(INTERFACE_VARIABLES, "lo"),  # all ranks are on this host
            **os.environ,
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 opens no store of its own
        }
        interrupter.should_stop()  # the first call: from now on a signal only sets the flag
        try:
            for rank in range(count):
                self._start(command, rank, variables, has_log=rank > 0 or is_copied)
            while self._running:
                self._record_exits()
                self._send_signals(is_stopped=interrupter.should_stop())
        except OSError as error:
            raise StageError(f"the ranks could not be started: {error}") from error
        finally:
            self._send(SIGKILL)
            for handle, (_, process) in self._running.items():
                os.close(handle)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(KILL_SECONDS)

    def _start(
        self, command: Sequence[str], rank: int, variables: Mapping[str, str], *, has_log: bool
    ) -> None:
        """Start the process of *rank*, which writes to its log if it *has_log*; rank 0 prints its errors."""
        numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        report = {REPORT_VARIABLE: str(report_of(self._folder, rank))}
        with ExitStack() as stack:
            streams: dict[str, Any] = {}
            if has_log:
                log_file = stack.enter_context(os.fdopen(open_lock(log_of(self._folder, rank)), "ab"))
                streams = {
                    "stdin": subprocess.DEVNULL,
                    "stdout": log_file,
                    "stderr": log_file if rank else None,
                }
            stack.enter_context(block_signals(SIGTERM))  # the rank inherits it: see `accept_termination`
            process = subprocess.Popen(  # noqa: S603  no shell
                module_command("pipeline.engine.rank_process", str(os.getpid()), *command),
                env={**variables, **numbers, **report},
                start_new_session=True,
                **streams,
            )
        self._running[open_process(process.pid)] = rank, process

    def _record_exits(self) -> None:
        """Record the ranks that have exited, after a short wait if all run."""
        poll = select.poll()
        for handle in self._running:
            poll.register(handle, select.POLLIN)
        for handle, _ in poll.poll(POLL_MILLISECONDS):
            now, (rank, process) = time.monotonic(), self._running.pop(handle)
            os.close(handle)
            report = read_report(report_of(self._folder, rank))
            self.exits.append(RankExit(rank, process.wait(), now, report, frozenset(self._sent)))

    def _send_signals(self, *, is_stopped: bool) -> None:
        """Send the signals that are due to the ranks that run."""
        failed = [exited for exited in self.exits if exited.has_failed]
        if self._deadline is None and failed:
            waits = LOST_SECONDS if all(exited.is_lost for exited in failed) else 0.0
            if time.monotonic() >= failed[0].seconds + waits:
                self._deadline = time.monotonic() + GRACE_SECONDS
        if self._deadline is not None and time.monotonic() > self._deadline:
            self._send(SIGKILL)
        elif SIGTERM not in self._sent and (is_stopped or self._deadline is not None):
            self._send(SIGTERM)

    def _send(self, number: Signals) -> None:
        """Send signal *number* to the ranks that run, and SIGKILL to the processes that they started too."""
        self._sent.add(number)
        for _, process in self._running.values():
            with suppress(ProcessLookupError):
                (os.killpg if number == SIGKILL else os.kill)(process.pid, number)


@contextmanager
def _copy_text(log: Path, output: TextIO | None) -> Iterator[None]:
    """Copy the text that is written to *log* in the block to *output*, if any."""
    if output is None:
        yield
        return
    log.touch()
    with (
        log.open(encoding="utf-8", errors="replace") as text,
        _repeat(lambda: output.write(text.read()), COPY_SECONDS),
    ):
        yield


@contextmanager
def _repeat(call: Callable[[], object], seconds: float) -> Iterator[None]:
    """Make *call* every *seconds*, in a thread of its own, while the block runs, and once after it."""
    has_ended = threading.Event()

    def repeat() -> None:
        while not has_ended.wait(seconds):
            call()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        call()


def needs_launch(config: FitConfig) -> bool:
    """Return whether the ranks of *config* are not started yet, by this project or by torchrun."""
    return "RANK" not in os.environ and len(from_params.list_devices(config)) > 1


def launch_fit(
    config: FitConfig,
    paths: FitPaths,
    code: Mapping[str, Any],
    interrupter: Interrupter,
    *,
    renderer: Renderer | None,
) -> None:
    """Run the stage fit on one rank for each device of *config*, whose logs are beside the run store.

    Rank 0 prints its progress, and *renderer* shows it in this process too. Raises `StageError` with the
    error of the rank that failed first, and `RunInterruptedError` if the ranks were stopped and have saved.
    """
    store = paths.runs / runs.run_key(fit.key_entries(config, paths, code))
    devices, folder = from_params.list_devices(config), ranks_of(store)
    with ExitStack() as stack:
        if renderer is not None:
            progress = Progress(config.num_epochs, shown=_list_shown(config), interrupter=interrupter)
            stack.enter_context(display_run(store, renderer, progress))
        run_ranks(
            module_command("pipeline", "stage", "fit"),
            devices,
            folder,
            interrupter,
            max_restarts=config.max_restarts,
        )


def _list_shown(config: FitConfig) -> dict[str, Shown]:
    """Return the display options of the metrics of *config*, by name."""
    built = [metrics.build_metric(use) for use in config.metrics]
    options = {metric.name: metrics.MetricOptions.of(metric) for metric in built}
    return {name: Shown(shown.unit, shown.decimals) for name, shown in options.items()}


@contextmanager
def display_run(store: Path, renderer: Renderer, progress: Progress) -> Iterator[None]:
    """Show the run that other processes train in *store* with *renderer*, from a thread of its own.

    *progress* is updated and passed to the renderer, without telemetry and without values of an epoch in
    progress. If no process trains in the block, the renderer is not called.
    """
    display = _Display(store, renderer, progress)
    try:
        with _repeat(display.update, INTERVAL_SECONDS):
            yield
        display.end_epochs(progress.epoch)
    finally:
        display.close()


class _Display:
    """The part of a run that *renderer* has shown."""

    def __init__(self, store: Path, renderer: Renderer, progress: Progress) -> None:
        self._store, self._renderer, self._progress = store, renderer, progress
        self._history = History()
        self._saved = {*list_epochs(store / CHECKPOINT_FOLDER)}
        self._shown_epochs: int | None = None
        """The last epoch whose end was shown; None before the first heartbeat."""
        beat = read_beat(store)
        self._earlier = beat and beat.owner
        """The process of an earlier run, whose heartbeat is in the store."""

    def update(self) -> None:
        """Show the last heartbeat, and the end of each epoch before its epoch."""
        beat, progress = read_beat(self._store), self._progress
        if beat is None or beat.owner == self._earlier:
            return
        if self._shown_epochs is None:
            self._shown_epochs = beat.first_epoch - 1
            progress.first_epoch = beat.first_epoch
            self._renderer.start(progress)
        self.end_epochs(beat.epoch - 1)
        progress.epoch, progress.split = beat.epoch, Split(beat.split)
        progress.batch, progress.batches = beat.step, beat.steps
        self._renderer.step(progress)
        self._show_checkpoints()

    def close(self) -> None:
        """Show the last checkpoints, and close the renderer."""
        if self._shown_epochs is not None:
            self._show_checkpoints()
            self._renderer.close()

    def _show_checkpoints(self) -> None:
        """Show the checkpoints that were written since the last call and are still there."""
        for epoch in sorted({*list_epochs(self._store / CHECKPOINT_FOLDER)} - self._saved):
            Renderers([self._renderer]).checkpoint(epoch)
            self._saved.add(epoch)

    def end_epochs(self, last: int) -> None:
        """Show the end of each epoch up to *last* that was not shown, after the first heartbeat."""
        shown = last if self._shown_epochs is None else self._shown_epochs
        for epoch in range(shown + 1, last + 1):
            self._read(epoch)
            self._progress.epoch = self._shown_epochs = epoch
            self._renderer.epoch_end(self._progress, self._history)

    def _read(self, epoch: int) -> None:
        """Add the values of *epoch* to the history."""
        for split in Split:
            with suppress(DataError, OSError):  # the store was removed, or a log is corrupt
                for metric, value in read_epoch(self._store, split, epoch).items():
                    self._history.add(Value(epoch, split, metric, value))
