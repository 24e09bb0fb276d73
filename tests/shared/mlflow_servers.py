"""A server of MLflow on the loopback interface."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest
from free_ports import free_port
from waiting import LIMIT_SECONDS, wait_until


@contextmanager
def serve(folder):
    """Run MLflow's server with a database in *folder* on a free port, and yield its address."""
    pytest.importorskip("mlflow.server", reason="needs mlflow")
    port = free_port()  # MLflow refuses the port 0
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "log").open("wb") as output:
        server = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=folder,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
    uri = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _is_healthy(uri), (folder / "log").read_text, server)
        yield uri
    finally:
        os.killpg(server.pid, signal.SIGTERM)  # its workers are in its group
        server.wait(LIMIT_SECONDS)


def _is_healthy(uri):
    try:
        return httpx.get(f"{uri}/health").status_code == 200
    except httpx.TransportError:
        return False
