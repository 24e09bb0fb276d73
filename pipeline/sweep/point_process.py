"""The processes of the points as the sweep sees them, and the server that forks them.

A process that runs points has one server for each sweep: the sweep itself, or a worker of Dask or Ray. A
request is a message on a socket, with the descriptors that the process of the point gets.
"""

import json
import os
import secrets
import select
import socket
import subprocess
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from pipeline.engine.project_copy import (
    COPY_SUFFIX,
    LOCK_SUFFIX,
    FrozenProject,
    copy_compiled_modules,
    temporary_copy,
)
from stages.contracts.errors import StageFailedError
from stages.runs.layout import SWEEP_FOLDER
from stages.system.file_lock import hold_lock
from stages.system.processes import module_command

SERVERS_FOLDER = SWEEP_FOLDER / "servers"
"""Copies of the project that servers import the code from, each with a lock file next to it."""
FIRST_POINT_SUFFIX = ".first"
"""Suffix of the lock file that the first point of a sweep holds until it trains."""
MAX_MESSAGE_BYTES = 1 << 10
IN_USE_CODE = os.EX_TEMPFAIL
"""Exit code of the process of a point whose run store another process uses."""


@dataclass(frozen=True)
class PointRequest:
    """A point to run, as plain values that JSON can represent."""

    overrides: tuple[str, ...]
    """Its params as ``FILE:KEY=VALUE``."""
    folder: str
    """The folder of the project in its copy."""
    ref: str
    """The git reference of the experiment."""
    sweep_lock: str
    """The lock file of the sweep."""
    environment: Mapping[str, str]
    """Environment variables to set."""


class PointProcess:
    """The process of one point."""

    def __init__(self, channel: socket.socket, server_log: Path) -> None:
        self._channel = channel
        self._server_log = server_log
        self.pid: int | None = None
        """The process, which leads a group of its own; None until the server has started it."""
        self.code: int | None = None
        """The exit code, negative for a signal; None while the process runs."""

    def wait(self, seconds: float) -> int | None:
        """Wait at most *seconds* for the exit, and return the exit code, or None if the process still runs.

        Raises `StageFailedError` if the server has exited.
        """
        if (
            self.code is None
            and self._channel.fileno() >= 0
            and select.select([self._channel], [], [], seconds)[0]
        ):
            message = self._channel.recv(MAX_MESSAGE_BYTES)
            if not message:
                raise StageFailedError(f"the server of the points has exited. {self._server_output()}")
            for name, value in json.loads(message).items():
                setattr(self, name, value)
        return self.code

    def signal(self, number: int) -> None:
        """Send signal *number* to the process and its group; one that has not started yet does not start."""
        if self.pid is None:
            self._prevent_start()
        if self.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _prevent_start(self) -> None:
        """Close the channel, without which no process starts; read the id that one has sent before."""
        with suppress(OSError, StageFailedError):
            self._channel.shutdown(socket.SHUT_RD)  # from now on, sending fails
            self.wait(0)
        self.close()

    def _server_output(self) -> str:
        with suppress(OSError):
            return self._server_log.read_text(encoding="utf-8", errors="replace").strip()
        return "Run the same command again to resume"


class _Server:
    """A server in a process of its own, and its copy of the project."""

    def __init__(self, base: FrozenProject, sweep_lock: Path) -> None:
        folder = base.root / SERVERS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / f"{secrets.token_hex(4)}{COPY_SUFFIX}"
        self._lock = place.with_suffix(LOCK_SUFFIX)
        self.log = place / ".git/server.log"
        with ExitStack() as stack:
            stack.enter_context(hold_lock(self._lock))
            code = stack.enter_context(temporary_copy(base, place))
            copy_compiled_modules(base, code)
            self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(self._control)
            with other, self.log.open("wb") as log:
                self._process = subprocess.Popen(  # noqa: S603  no shell
                    module_command("pipeline.sweep.point_server", str(other.fileno()), str(sweep_lock)),
                    cwd=code,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[other.fileno()],
                    start_new_session=True,  # the terminal's Ctrl-C ends the sweep, which stops the points
                )
            self._stack = stack.pop_all()

    def start(self, request: PointRequest, log: IO[bytes], stdin: int) -> PointProcess:
        """Request the process of a point. Raises `OSError` if the server has exited."""
        channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            try:
                handles = [other.fileno(), stdin, log.fileno()]
                socket.send_fds(self._control, [json.dumps(asdict(request)).encode()], handles)
            except OSError:
                channel.close()
                raise
        return PointProcess(channel, self.log)

    def close(self) -> None:
        """End the server, which stops its points, and remove its copy of the project."""
        self._control.close()
        self._process.wait()
        self._stack.close()
        self._lock.unlink(missing_ok=True)


class PointServers:
    """The servers of this process, by the lock file of their sweep; several threads can use them."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._servers: dict[Path, _Server] = {}

    def start(self, base: FrozenProject, request: PointRequest, log: IO[bytes], stdin: int) -> PointProcess:
        """Start the process of a point, and the server of its sweep if that has none.

        Its standard input is *stdin*, and it writes to *log*.
        """
        sweep_lock = Path(request.sweep_lock)
        with self._guard:
            if server := self._servers.get(sweep_lock):
                with suppress(OSError):
                    return server.start(request, log, stdin)
                self._servers.pop(sweep_lock).close()
            server = self._servers[sweep_lock] = _Server(base, sweep_lock)
            return server.start(request, log, stdin)

    def close(self) -> None:
        """End all servers of this process."""
        with self._guard:
            while self._servers:
                self._servers.popitem()[1].close()


POINT_SERVERS = PointServers()
