"""Prefect servers for tests."""

import contextlib
import shutil
import subprocess
import sys
import urllib.request

from free_ports import free_port
from templates import template
from waiting import LIMIT_SECONDS, wait_until


class Server:
    """A real Prefect server on a free port of the loopback interface, with *settings* of Prefect."""

    def __init__(self, home, database=None, **settings):
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
            **({"PREFECT_API_DATABASE_CONNECTION_URL": database} if database else {}),
            **settings,
        }
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
    server = Server(folder)
    server.wait()
    server.end()


@contextlib.contextmanager
def running_server(home, database=None, **settings):
    """Run a server in the block, with its files in the folder *home*."""
    if database is None:
        shutil.copytree(template("prefect", migrate), home, dirs_exist_ok=True)
    made = Server(home, database, **settings)
    try:
        made.wait()
        yield made
    finally:
        made.end()
