"""Torch's elastic agent for the ranks of this host, with rules of this project for the end of the ranks.

This module imports torch.distributed.elastic, so only `rank_launcher` imports it, and only to start ranks.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, cast

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # they are there, without a re-export
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from pipeline.engine.error_reports import read_report
from pipeline.engine.rank_process import RankExit, report_of
from stages.system.worker_signals import block_signals

LOOPBACK = "127.0.0.1"
GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL for the other ranks after one has failed; most hang in a collective."""
LOST_SECONDS = 3.0
"""Time for the rank that failed to report its error, if another one has lost the connection to it."""
POLL_MILLISECONDS = 100
AGENT_PAUSE_SECONDS = 0.01


class _LocalRendezvous(RendezvousHandler):
    """The rendezvous of a single agent, on a store that is open already.

    Torch's static one opens the store by its port, so another process can take the port before. With
    `multi_tenant` it looks for the store in this process, but keeps the entries of closed stores and then
    does not find a later one on the same port (torch 2.13).
    """

    def __init__(self, store: TCPStore) -> None:
        self._store = store

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        address = RendezvousStoreInfo(LOOPBACK, self._store.port)
        return RendezvousInfo(PrefixStore(self.get_run_id(), self._store), 0, 1, address)

    def get_backend(self) -> str:
        return "static"

    def get_run_id(self) -> str:
        return "ranks"

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True


def open_local_store() -> TCPStore:
    """Return a store on a free port of the loopback interface.

    Torch ignores the address of a store and listens on all interfaces, unless it gets an open socket.
    """
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        handle = listener.detach()  # the store closes it
    return TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=handle)


class RankAgent(LocalElasticAgent):
    """An agent that leaves ranks that save the time they need, and ends the others soon after a failure.

    Torch's agent ends all ranks as soon as one exits with a code other than 0, and kills them 30 s later.
    Its checks, which do that, therefore begin only when all ranks have exited. The two methods that this
    class overrides are among those that torch documents for other agents.
    """

    def __init__(self, command: Sequence[str], ranks: int, folder: Path) -> None:
        store = open_local_store()
        spec = WorkerSpec(
            role="default",
            local_world_size=ranks,
            entrypoint=command[0],
            # torch replaces ${local_rank}
            args=tuple(argument.replace("$", "$$") for argument in command[1:]),
            rdzv_handler=_LocalRendezvous(store),
            max_restarts=0,
            monitor_interval=AGENT_PAUSE_SECONDS,
            master_addr=LOOPBACK,
            master_port=store.port,
        )
        super().__init__(spec, DefaultLogsSpecs(os.devnull))
        self.exits: list[RankExit] = []
        """The exits of the ranks, in their order."""
        self.error: Exception | None = None
        """The exception of the agent itself."""
        self._size, self._folder = ranks, folder
        self._stop, self._kill = threading.Event(), threading.Event()
        self._running: dict[int, tuple[int, int]] = {}  # by file descriptor: rank and process
        self._sent: set[int] = set()
        self._deadline: float | None = None

    def run_ranks(self) -> None:
        """Run the ranks until all have exited, in a thread other than the main one.

        In the main thread torch would replace the signal handlers.
        """
        try:
            self.run()
            if len(self.exits) != self._size:  # this version of torch does not call the methods below
                raise RuntimeError(f"{len(self.exits)} of {self._size} ranks are known to have exited")
        except Exception as error:  # noqa: BLE001  the main thread raises it
            self.error = error

    def stop_ranks(self) -> None:
        """Send SIGTERM to all ranks, once, and wait until they have saved."""
        self._stop.set()

    def kill_ranks(self) -> None:
        """Send SIGKILL to all ranks."""
        self._kill.set()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with block_signals(SIGTERM):  # the ranks inherit it: see `accept_termination`
            pids: dict[int, Any] = super()._start_workers(worker_group)
        self._running = {os.pidfd_open(pid): (rank, pid) for rank, pid in pids.items()}
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        for handle in self._wait():
            self._record_exit(handle)
        if not self._running:
            return cast(RunResult, super()._monitor_workers(worker_group))
        self._send_signals()
        return RunResult(state=WorkerState.HEALTHY)

    def _wait(self) -> list[int]:
        """Return the handles of the ranks that have exited, after a short wait if all run."""
        poll = select.poll()
        for handle in self._running:
            poll.register(handle, select.POLLIN)
        return [handle for handle, _ in poll.poll(POLL_MILLISECONDS)]

    def _record_exit(self, handle: int) -> None:
        """Record the exit of a process, and leave it to torch to release the process."""
        now, (rank, pid) = time.monotonic(), self._running.pop(handle)
        os.close(handle)
        exited = cast(os.waitid_result, os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT))
        code = exited.si_status if exited.si_code == os.CLD_EXITED else -exited.si_status
        report = read_report(report_of(self._folder, rank))
        self.exits.append(RankExit(rank, code, now, report, frozenset(self._sent)))

    def _send_signals(self) -> None:
        """Send the signals that are due to the ranks that run."""
        failed = [exited for exited in self.exits if exited.has_failed]
        if self._deadline is None and failed:
            waits = LOST_SECONDS if all(exited.is_lost for exited in failed) else 0.0
            if time.monotonic() >= failed[0].seconds + waits:
                self._deadline = time.monotonic() + GRACE_SECONDS
        if self._kill.is_set() or (self._deadline is not None and time.monotonic() > self._deadline):
            self._send(SIGKILL)
        elif SIGTERM not in self._sent and (self._stop.is_set() or self._deadline is not None):
            self._send(SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        """Send signal *number* to the ranks that run, and SIGKILL to the processes that they started too."""
        self._sent.add(number)
        for _, pid in self._running.values():
            with suppress(ProcessLookupError):
                (os.killpg if number == SIGKILL else os.kill)(pid, number)
