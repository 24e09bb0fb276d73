"""A configured but unreachable Prefect API is reported in one line, and no training is lost."""

import socket
import threading
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from long_tests import long

from pipeline.flows import prefect_api

SHORT_KINDS = ["refused"]
LONG_KINDS = ["silent", "500", "404", "page"]


@contextmanager
def refusing_port():
    """Yield a port that refuses connections."""
    with closing(socket.socket()) as bound:  # bound, but not listening
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextmanager
def silent_port():
    """Yield a port that accepts connections and sends no response."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield listening.getsockname()[1]


@contextmanager
def http_port(status):
    """Yield the port of an HTTP server that responds with *status* and a page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"<html>")

        def do_POST(self):
            self.do_GET()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(params=[*SHORT_KINDS, *map(long, LONG_KINDS)])
def address(request):
    """The URL of a server that is not a Prefect API."""
    ports = {"refused": refusing_port, "silent": silent_port}
    with ports.get(request.param, lambda: http_port(int(request.param.replace("page", "200"))))() as port:
        yield f"http://127.0.0.1:{port}/api"


@pytest.fixture
def refused():
    """The URL of a Prefect API that refuses connections."""
    with refusing_port() as port:
        yield f"http://127.0.0.1:{port}/api"


def test_run_fails_with_one_line_before_it_writes_outputs(project, address):
    done = project.call("run", PREFECT_API_URL=address)

    assert done.code == 1
    assert done.out == ""
    [line] = done.err.splitlines()
    assert line.startswith(f"error: the Prefect API at {address} is unreachable (")
    assert not (project.folder / "artifacts").exists()


def test_repro_continues_without_recording_after_one_warning(project, address):
    done = project.dvc("repro", "load-data", PREFECT_API_URL=address)

    assert done.code == 0, done.text
    assert done.err.count("warning: ") == 1
    assert f"warning: the Prefect API at {address} is unreachable (" in done.err
    assert "Traceback" not in done.text
    assert (project.folder / "data/prepared").exists()


def test_repro_fails_before_the_stage_runs_if_recording_is_required(finished, refused):
    before = finished.files("dvc.lock", "artifacts")
    finished.edit("params.yaml", "num_epochs: 2", "num_epochs: 3")

    done = finished.dvc("repro", PREFECT_API_URL=refused, LEARNER_PREFECT="required")

    assert done.code != 0
    assert done.err.count(f"error: the Prefect API at {refused} is unreachable (") == 1
    assert "Traceback" not in done.text
    assert finished.files("dvc.lock", "artifacts") == before


def test_run_continues_without_recording_if_it_is_optional(finished, refused):
    done = finished.call("run", PREFECT_API_URL=refused, LEARNER_PREFECT="optional")

    assert done.code == 0, done.text
    assert done.err.splitlines() == [line for line in done.err.splitlines() if line.startswith("warning: ")]
    assert done.out.splitlines()[-1] == "save-model: unchanged"


@pytest.mark.parametrize(
    ("command", "environment", "code", "message"),
    [
        (["run"], {"LEARNER_PREFECT": "maybe"}, 2, "LEARNER_PREFECT is 'maybe'. Set it to 'required'"),
        (["run"], {"LEARNER_PREFECT": "required"}, 1, "no Prefect API is configured. Set PREFECT_API_URL"),
        (
            ["run"],
            {"PREFECT_API_URL": "localhost"},
            1,
            "unreachable (it must begin with http:// or https://)",
        ),
        (["serve"], {"PREFECT_API_URL": "http://127.0.0.1:9/api"}, 1, "unreachable ("),
        (["sweep", "-S", "fit.seed=1"], {"PREFECT_API_URL": "http://127.0.0.1:9/api"}, 1, "unreachable ("),
    ],
)
def test_invalid_or_unreachable_api_is_refused_with_one_line(project, command, environment, code, message):
    done = project.call(*command, **environment)

    assert done.code == code
    [line] = done.err.splitlines()
    assert message in line


@pytest.mark.parametrize("status", [401, 403, 429])
def test_api_that_rejects_a_request_is_reachable(monkeypatch, status):
    with http_port(status) as port:
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api/")

        assert prefect_api.probe() is None


@pytest.mark.parametrize("command", [("run",), ("stage", "create-artifact-dir")])
def test_rejected_credentials_are_reported_in_one_line(project, command):
    with http_port(401) as port:
        done = project.call(*command, PREFECT_API_URL=f"http://127.0.0.1:{port}/api")

    assert done.code == 1
    assert (
        "responded with HTTP 401. Check PREFECT_API_KEY or PREFECT_API_AUTH_STRING"
        in done.err.splitlines()[-1]
    )
    assert "Traceback" not in done.text


def test_probe_sends_the_credentials_and_headers_to_the_path_of_a_proxy(monkeypatch):
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            received.append((self.path, self.headers["Authorization"], self.headers["X-Team"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"true")

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server.server_port}/team/prefect/api")
        monkeypatch.setenv("PREFECT_API_KEY", "key")
        monkeypatch.setenv("PREFECT_CLIENT_CUSTOM_HEADERS", '{"X-Team": "blue"}')

        assert prefect_api.probe() is None
    assert received == [("/team/prefect/api/health", "Bearer key", "blue")]
