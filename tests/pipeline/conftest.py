"""A Prefect server, for the tests of what it is told."""

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request

import pytest


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real Prefect server on a free port of loopback; its address."""
    home = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    environment = {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PATH": "/usr/bin:/bin",
    }
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}/api"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{address}/health")  # noqa: S310  loopback
                break
            assert process.poll() is None, (home / "log").read_text()
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=60)
