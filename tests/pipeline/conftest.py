"""A Prefect server for the tests, on SQLite, or on PostgreSQL if LEARNER_TEST_POSTGRES is set."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from file_order import USE_THE_SERVER
from prefect_servers import running_server
from waiting import LIMIT_SECONDS, wait_until


def program(name):
    """Return the path of PostgreSQL's program *name*; skip the test if it is not installed."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(installed[-1]) if installed else None)
    if found is None:
        pytest.skip(f"PostgreSQL is not installed: {name} was not found")
    return found


@contextmanager
def running_database():
    """Yield the address of a database in a new PostgreSQL cluster without a TCP port; None for SQLite."""
    if not os.environ.get("LEARNER_TEST_POSTGRES"):
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="learner-postgres-"))
    other = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    if other:  # PostgreSQL refuses to run as root
        shutil.chown(folder, other["user"], other["group"])
    quiet = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **other}
    make = ["-D", folder / "data", "-U", "learner", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    subprocess.run([program("initdb"), *make], check=True, **quiet)
    start = ["-D", folder / "data", "-c", "listen_addresses=", "-k", folder]
    process = subprocess.Popen([program("postgres"), *start], **quiet)
    try:
        wait_until(lambda: is_listening(folder / ".s.PGSQL.5432"), process=process)
        yield f"postgresql+asyncpg://learner@/postgres?host={folder}"
    finally:
        process.send_signal(signal.SIGINT)  # PostgreSQL shuts down without waiting for clients
        process.wait(LIMIT_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def database():
    """Yield the database of the server that tests share."""
    with running_database() as address:
        yield address


@pytest.fixture
def private_database():
    """Yield a database that one test uses alone."""
    with running_database() as address:
        yield address


def is_listening(path):
    with closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(str(path))
    return True


UNUSED_SERVICES = {
    f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false"
    for name in ("FOREMAN", "PAUSE_EXPIRATIONS", "TRIGGERS")
}
"""Settings without the services of workers, pauses and automations, whose loops take time all the time."""


class SharedServer:
    """A server that starts when a test needs it, and that runs until `stop`."""

    def __init__(self):
        self._stack, self._address = ExitStack(), None

    def start(self, folder, database):
        """Start the server, unless it runs, with its files in a new *folder*, and return its address.

        A flow in this process starts services of Prefect, and without the patches every later fork fails when
        it ends, such as a worker of a data loader in another test.
        """
        from pipeline.flows import prefect_patches  # it imports Prefect, which few tests need

        if self._address is None:
            prefect_patches.apply()
            running = running_server(folder("server"), database, **UNUSED_SERVICES)
            self._address = self._stack.enter_context(running).address
        return self._address

    def stop(self):
        """Send the server the logs that it has not received, and stop it, if it runs."""
        if self._address and (handlers := sys.modules.get("prefect.logging.handlers")):
            handlers.APILogHandler().flush()
        self._stack.close()
        self._address = None


SHARED_SERVER = SharedServer()


@pytest.fixture(scope="module")
def server(tmp_path_factory, database):
    """Return the address of a server that all tests share: `file_order` gives their files to one worker."""
    return SHARED_SERVER.start(tmp_path_factory.mktemp, database)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Stop the server after the last of these files: it uses 4 s of processor time in 100 s if it is idle.

    The tests of another file, whose fixture has its address, use it up to the end of the file.
    """
    if nextitem is None or (nextitem.path != item.path and not nextitem.nodeid.startswith(USE_THE_SERVER)):
        SHARED_SERVER.stop()


def pytest_sessionfinish():
    """Stop the server if a failed test has ended the session."""
    SHARED_SERVER.stop()


@pytest.fixture
def private_server(tmp_path, private_database):
    """Yield a server that one test uses alone, and may kill."""
    home = tmp_path / "server"
    home.mkdir()
    with running_server(home, private_database) as private:
        yield private
