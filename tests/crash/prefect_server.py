"""A Prefect server on the loopback address, and the requests of the trials."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

ENDED = {"Completed", "Failed", "Crashed", "Cancelled", "TimedOut"}
SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
    "DO_NOT_TRACK": "1",
}


class Api:
    """The API of the server."""

    def __init__(self, address):
        self.address = address

    def start(self, deployment, overrides):
        """Start a run of *deployment* with *overrides* and return its id."""
        made = self._ask(f"deployments/name/learner/{deployment}")
        body = {"parameters": {"overrides": overrides}, "state": {"type": "SCHEDULED"}}
        return self._ask(f"deployments/{made['id']}/create_flow_run", body)["id"]

    def state(self, run):
        """Return the name of the state of *run*."""
        return self._ask(f"flow_runs/{run}")["state_name"]

    def wait(self, run, seconds):
        """Wait until *run* has ended, at most *seconds*, and return its state."""
        deadline = time.monotonic() + seconds
        while (state := self.state(run)) not in ENDED and time.monotonic() < deadline:
            time.sleep(0.3)
        return state

    def _ask(self, path, body=None):
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310  loopback
            f"{self.address}/{path}", content, {"Content-Type": "application/json"}
        )
        for _ in range(120):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310  loopback
                    return json.loads(answer.read())
            except urllib.error.HTTPError as error:
                if error.code != 503:  # SQLite is busy
                    raise
                time.sleep(0.5)
        raise AssertionError(f"the server answered {path} with status 503 for a minute")


@contextlib.contextmanager
def running_server(folder):
    """Start a server with its database in *folder*, yield its `Api`, and stop it after the block."""
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    environment = {"PREFECT_HOME": str(folder), "PATH": os.defpath} | SETTINGS
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        api = Api(f"http://127.0.0.1:{port}/api")
        _wait_until_healthy(api, process, folder / "log")
        yield api
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait_until_healthy(api, process, log):
    for _ in range(600):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{api.address}/health")  # noqa: S310  loopback
            return
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(f"the server did not respond: {log.read_text()[-1000:]}")
