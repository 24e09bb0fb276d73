"""A Prefect server for the tests, on SQLite, or on PostgreSQL if LEARNER_TEST_POSTGRES is set."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pytest
from free_ports import free_port
from templates import template
from waiting import LIMIT_SECONDS, wait_until


def program(name):
    """Return the path of PostgreSQL's program *name*; skip the test if it is not installed."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(installed[-1]) if installed else None)
    if found is None:
        pytest.skip(f"PostgreSQL is not installed: {name} was not found")
    return found


@pytest.fixture(scope="session")
def database():
    """Yield the address of a database in a new PostgreSQL cluster; None for SQLite."""
    if not os.environ.get("LEARNER_TEST_POSTGRES"):
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="learner-postgres-"))
    port = free_port()
    other = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    if other:  # PostgreSQL refuses to run as root
        shutil.chown(folder, other["user"], other["group"])
    quiet = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **other}
    make = ["-D", folder / "data", "-U", "learner", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    subprocess.run([program("initdb"), *make], check=True, **quiet)
    start = ["-D", folder / "data", "-p", str(port), "-h", "127.0.0.1", "-k", folder]
    process = subprocess.Popen([program("postgres"), *start], **quiet)
    try:
        wait_until(lambda: socket.create_connection(("127.0.0.1", port)).close() is None, process=process)
        yield f"postgresql+asyncpg://learner@127.0.0.1:{port}/postgres"
    finally:
        process.send_signal(signal.SIGINT)  # PostgreSQL shuts down without waiting for clients
        process.wait(LIMIT_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


class Server:
    """A real Prefect server on a free port of the loopback interface."""

    def __init__(self, home, database):
        """Start the server with its files in the folder *home*."""
        port = free_port()
        self.address = f"http://127.0.0.1:{port}/api"
        self.log = home / "log"
        command = ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        environment = {
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "1",
            "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
            "DO_NOT_TRACK": "1",
            "PATH": "/usr/bin:/bin",
        } | ({"PREFECT_API_DATABASE_CONNECTION_URL": database} if database else {})
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def wait(self):
        """Wait until the server responds."""
        wait_until(self._is_responding, self.log.read_text, self.process)

    def _is_responding(self):
        with urllib.request.urlopen(f"{self.address}/health") as answer:  # noqa: S310  loopback
            return answer.status == 200

    def end(self):
        """Terminate the server and wait until it has exited."""
        self.process.terminate()
        self.process.wait(LIMIT_SECONDS)


def migrate(folder):
    """Have a server create its database in *folder*, which takes as long as its start."""
    server = Server(folder, None)
    server.wait()
    server.end()


@contextlib.contextmanager
def running_server(home, database):
    """Run a server in the block, with its files in the folder *home*."""
    if database is None:
        shutil.copytree(template("prefect", migrate), home, dirs_exist_ok=True)
    made = Server(home, database)
    try:
        made.wait()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def server(tmp_path_factory, database):
    """Yield the address of a server that all tests of a module share."""
    with running_server(tmp_path_factory.mktemp("server"), database) as made:
        yield made.address


@pytest.fixture
def private_server(tmp_path, database):
    """Yield a server that one test uses alone, and may kill."""
    home = tmp_path / "server"
    home.mkdir()
    with running_server(home, database) as made:
        yield made
