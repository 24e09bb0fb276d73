"""Prefect servers for tests, and a client of their API."""

import contextlib
import functools
import json
import math
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import closing
from importlib.metadata import version
from urllib.parse import urlsplit

from repository import ROOT
from waiting import LIMIT_SECONDS, wait_until

ENDED = {"Completed", "Failed", "Crashed", "Cancelled", "TimedOut"}
DELAY_SECONDS = 3
"""Time by which a connection with the fault "delay" is late."""
PAUSE_SECONDS = 0.25
"""Pause between two requests of a test that waits, each of which costs the server some milliseconds."""


DATABASES = ROOT / "build/prefect"
"""Databases of new servers, by the version of Prefect: their creation takes half of the start of a server."""


class Server:
    """A real Prefect server on a port that the system chooses, with *settings* of Prefect."""

    def __init__(self, home, database=None, **settings):
        self.address = None
        self.log = home / "log"
        command = ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", "0"]
        environment = {
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "1",
            "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
            "PREFECT_SERVER_UI_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PATH": "/usr/bin:/bin",
            **({"PREFECT_API_DATABASE_CONNECTION_URL": database} if database else {}),
            **settings,
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command, "--log-level", "INFO"],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self):
        """Wait until the server responds at the address that it has logged."""
        self.address = wait_until(self._find_address, self.log.read_text, self.process)

    def _find_address(self):
        found = re.search(r"running on (http://[\d.:]+)", self.log.read_text())
        if found is None:
            return None
        with urllib.request.urlopen(f"{found[1]}/api/health") as answer:  # noqa: S310  loopback
            return f"{found[1]}/api" if answer.status == 200 else None

    def end(self):
        """Terminate the server and wait until it has exited."""
        self.process.terminate()
        self.process.wait(LIMIT_SECONDS)


@contextlib.contextmanager
def running_server(home, database=None, **settings):
    """Run a server in the block, with its files in the folder *home*, which may have those of an earlier one.

    The first server saves its new database, and later ones begin with a copy.
    """
    file, saved = home / "prefect.db", DATABASES / f"{version('prefect')}.db"
    if database is None and saved.exists() and not file.exists():
        shutil.copy(saved, file)
    made = Server(home, database, **settings)
    try:
        made.wait()
        if database is None and not saved.exists():
            save_database(file, saved)
        yield made
    finally:
        made.end()


def save_database(file, saved):
    """Copy the SQLite database *file*, which a server uses, to *saved*."""
    saved.parent.mkdir(parents=True, exist_ok=True)
    part = saved.with_suffix(f".{os.getpid()}")
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(part)) as target:
        source.backup(target)
    part.replace(saved)


RESPONSES = {
    "500": b"HTTP/1.1 500 Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "page": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>",
    "garbage": b"\0\1\2\r\n\r\n",
}
"""The responses of a proxy instead of those of the API."""
FAULTS = ("drop", "silent", "delay", "truncate", *RESPONSES)
REQUEST = re.compile(rb"[A-Z]+ /\S* HTTP/1")


class Proxy:
    """A proxy in front of the API at *address*, with faults for a number of requests."""

    def __init__(self, address):
        self._connections = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._fault, self._first, self._path = None, 0, b""
        self.requests, self.faults = 0, 0
        """The numbers of requests, and of those that had a fault."""
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}/api"
        self.recover(address)
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.fail("drop")
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def fail(self, fault, count=math.inf, *, after=0, path=""):
        """Let the next *count* requests of *path* fail: at once, with closed connections, or *after* some.

        *fault* is "drop", which closes the connection, "silent", which sends no response, "delay" of some
        seconds, "truncate", which closes the connection within the response, or one of `RESPONSES`.
        """
        self._fault, self._count, self._first = fault, count, self.requests + after
        self._path = f"{path} HTTP/1".encode() if path else b""
        if after == 0:
            close(*self._connections)

    def recover(self, address=None):
        """Forward the requests from now on, to *address* if it is given."""
        if address:
            target = urlsplit(address)
            self._target = (target.hostname, target.port)
        self._count = 0

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, client):
        upstream, is_truncated = socket.socket(), threading.Event()
        with contextlib.suppress(OSError), client, upstream:
            while content := client.recv(1 << 16):
                fault = self._take_fault(content) if REQUEST.match(content) else None
                if fault == "drop":
                    break
                if fault == "silent":
                    continue
                if fault in RESPONSES:
                    client.sendall(RESPONSES[fault])
                    client.shutdown(socket.SHUT_WR)
                    continue
                if fault == "delay":
                    threading.Event().wait(DELAY_SECONDS)
                if fault == "truncate":
                    is_truncated.set()
                if upstream not in self._connections:
                    upstream.connect(self._target)
                    self._connections |= {client, upstream}
                    arguments = (upstream, client, is_truncated)
                    threading.Thread(target=send_back, args=arguments, daemon=True).start()
                upstream.sendall(content)
            close(client, upstream)
        self._connections -= {client, upstream}

    def _take_fault(self, content):
        """Return the fault of the request that arrives with *content*; None if it has none."""
        self.requests += 1
        if self.requests <= self._first or self._count <= 0 or self._path not in content:
            return None
        self._count, self.faults = self._count - 1, self.faults + 1
        return self._fault


def send_back(upstream, client, is_truncated):
    """Send what *upstream* responds to *client*, until one of them is closed or a response *is_truncated*."""
    with contextlib.suppress(OSError):
        while content := upstream.recv(1 << 16):
            if is_truncated.is_set():
                client.sendall(content if content.endswith(b"\r\n\r\n") else content[:-1])
                break
            client.sendall(content)
    close(upstream, client)


def close(*connections):
    """Close *connections* for both sides, also while a thread waits for one of them."""
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


wait_for = functools.partial(wait_until, pause_seconds=PAUSE_SECONDS)


class Api:
    """A client of the REST API of a Prefect server."""

    def __init__(self, address):
        self.address = address

    def get(self, path):
        return self._send(f"{self.address}/{path}")

    def post(self, path, body):
        request = urllib.request.Request(  # noqa: S310  loopback
            f"{self.address}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return self._send(request)

    def delete(self, path):
        self._send(urllib.request.Request(f"{self.address}/{path}", method="DELETE"))  # noqa: S310  loopback

    @staticmethod
    def _send(request):
        """Send *request* and return its response; repeat it after HTTP 503 from a busy server on SQLite."""

        def responded():
            try:
                with urllib.request.urlopen(request) as answer:  # noqa: S310  loopback
                    return [answer.read()]
            except urllib.error.HTTPError as error:
                if error.code == 503:
                    return None
                raise AssertionError(error) from error

        [text] = wait_until(responded)
        return json.loads(text) if text else None

    def deployment(self, name):
        return self.get(f"deployments/name/learner/{name}")

    def start(self, name, **parameters):
        """Create a run of deployment *name* and return its id."""
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return self.post(f"deployments/{self.deployment(name)['id']}/create_flow_run", body)["id"]

    def cancel(self, run):
        self.post(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})

    def state(self, run):
        return self.get(f"flow_runs/{run}")["state_name"]

    def has_ended(self, run):
        return self.state(run) in ENDED

    def wait(self, run, *states):
        """Wait until *run* is in one of *states*, by default any final state, and return the state."""

        def reached():
            state = self.state(run)
            return state if state in (states or ENDED) else None

        return wait_for(reached, lambda: f"the state is {self.state(run)}: {self.logs(run)}")

    def history(self, run):
        """Return the names of the states of *run*, oldest first."""
        return [state["name"] for state in self.get(f"flow_run_states/?flow_run_id={run}")]

    def runs(self, name):
        """Return the runs of deployment *name*, in the order of their expected start."""
        wanted = {"deployments": {"id": {"any_": [self.deployment(name)["id"]]}}}
        return self.post("flow_runs/filter", wanted | {"sort": "EXPECTED_START_TIME_ASC"})

    def find(self, kind, run, **options):
        """Return the objects of *kind*, such as "task_runs", that belong to flow run *run*."""
        return self.post(f"{kind}/filter", {"flow_runs": {"id": {"any_": [run]}}} | options)

    def logs(self, run):
        wanted = {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
        return [entry["message"] for entry in self.post("logs/filter", wanted)]

    def wait_for_log(self, run, text):
        """Wait until a log line of *run* contains *text*; logs arrive with a delay of seconds."""
        return wait_for(lambda: any(text in line for line in self.logs(run)), lambda: self.logs(run))

    def tasks(self, run, count):
        """Return the names and states of the tasks of *run*, in order, after *count* have arrived."""

        def arrived():
            found = self.find("task_runs", run, sort="EXPECTED_START_TIME_ASC")
            has_ended = all(task["state_name"] in ENDED | {"Cached"} for task in found)
            return found if len(found) >= count and has_ended else None

        return [(task["name"].rsplit("-", 1)[0], task["state_name"]) for task in wait_for(arrived)]

    def artifacts(self, run):
        """Return the artifacts of *run* by key."""
        return {artifact["key"]: artifact for artifact in self.find("artifacts", run) if artifact["key"]}
