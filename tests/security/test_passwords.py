"""A password in a URL is neither printed nor stored."""

import json
import logging
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from forked_commands import run_in_pipe
from long_tests import long
from prefect.settings import PREFECT_API_URL, temporary_settings

from pipeline.doctor.diagnostics import Level
from pipeline.doctor.environment import check_prefect
from pipeline.engine.error_reports import REPORT_VARIABLE, read_report, write_report
from pipeline.flows import prefect_api
from pipeline.flows.run_registry import FLOW_RUNS_FOLDER, register_flow_run
from pipeline.flows.server_outage import outage_message
from stages.contracts.deliveries import EVENTS_FILE
from stages.contracts.events import Progress
from stages.contracts.printing import CleanRecord
from stages.contracts.text import hide_passwords
from stages.loggers.tracking import RunDescription, TrackerProcess

SECRET = "s3cret-word"  # noqa: S105
ANY_HOST = "0.0.0.0"  # noqa: S104  connects to this host, and is an address that others may reach
API = f"http://user:{SECRET}@127.0.0.1:9/api"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"https://user:{SECRET}@host/x", "https://user:***@host/x"),
        (f"https://{SECRET}@host/x", "https://***@host/x"),
        (f"HTTPS://{SECRET}@host", "HTTPS://***@host"),
        (f"ssh://git:{SECRET}@host:22/x", "ssh://git:***@host:22/x"),
        ("ssh://git@host/x", "ssh://git@host/x"),
        (f"postgresql+asyncpg://user:{SECRET}@host/x", "postgresql+asyncpg://user:***@host/x"),
        (f"http://:{SECRET}@host", "http://:***@host"),
        (f"http://user:a@{SECRET}@host", "http://user:***@host"),
        (f"http://user:a/{SECRET}@host", "http://user:***@host"),
        (f"https://host/x?password={SECRET}&y=1", "https://host/x?password=***&y=1"),
        (f"https://host/x?y=1&sig={SECRET}", "https://host/x?y=1&sig=***"),
        (
            f"from http://a:{SECRET}@b to (https://c:{SECRET}@d).",
            "from http://a:***@b to (https://c:***@d).",
        ),
        (f'{{"a": "http://a:{SECRET}@b", "c": "x@y"}}', '{"a": "http://a:***@b", "c": "x@y"}'),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("user:word@host", "user:word@host"),
    ],
)
def test_password_is_hidden_and_the_rest_is_kept(url, shown):
    assert hide_passwords(url) == shown


@pytest.mark.parametrize("text", ["a", "a://", "a://b:", "a://b:1/", "?token://"])
def test_text_of_a_million_characters_is_searched_for_passwords_at_once(text):
    """Every command prints text of others, such as a param, and the time must not grow with its square."""
    text = f"{text * (1_000_000 // len(text))} s://"

    assert hide_passwords(text) == text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a project with a password in the URL of each remote."""
    made = tmp_path_factory.mktemp("project")
    (made / ".dvc").mkdir()
    url = f"http://user:{SECRET}@127.0.0.1:9/store"
    (made / ".dvc/config").write_text(f"[core]\n    remote = r\n['remote \"r\"']\n    url = {url}\n")
    (made / "dvc.yaml").write_text("stages: {}\n")
    (made / "params.yaml").write_text(f"load_data:\n  source:\n    kind: my:source\n    url: {API}\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["remote", "add", "origin", url]):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments]
        subprocess.run(command, cwd=made, check=True)
    return made


@pytest.mark.parametrize(
    "command", ["doctor --timeout 1", long("doctor --timeout 1 --json"), "params", "params --json"]
)
def test_commands_print_no_password(folder, command):
    ended = run_in_pipe(folder, *command.split(), PREFECT_API_URL=API)

    assert "user:***@127.0.0.1:9" in ended.text
    assert SECRET not in ended.text


def test_messages_about_an_outage_have_no_password(monkeypatch):
    monkeypatch.setenv(prefect_api.URL, API)

    with pytest.raises(Exception, match=r"user:\*\*\*@127") as error:
        prefect_api.require_api()
    assert SECRET not in str(error.value)
    with temporary_settings({PREFECT_API_URL: API}):
        assert "user:***@127" in outage_message()
        assert SECRET not in outage_message()


def test_files_below_runs_have_no_password(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(prefect_api.URL, API)
    monkeypatch.setenv(REPORT_VARIABLE, str(tmp_path / "report"))

    prefect_api.is_stage_recorded(1)
    with temporary_settings({PREFECT_API_URL: API}):
        register_flow_run("00000000-0000-0000-0000-000000000000")
    write_report(f"no answer from {API}", 1)

    assert read_report(tmp_path / "report").message == f"no answer from {hide_passwords(API)}"
    written = [each for each in (tmp_path / ".runs").rglob("*") if each.is_file()]
    assert {"prefect-unreachable.json"} < {each.name for each in written}
    assert list(FLOW_RUNS_FOLDER.glob("*.json"))
    assert not [each for each in written if SECRET in each.read_text()]


def test_tracker_has_no_password_in_its_events_and_in_its_command_line(tmp_path):
    address = {"uri": f"http://user:{SECRET}@127.0.0.1:9"}
    tracker = TrackerProcess("no_module:Tracker", tmp_path, RunDescription(params=address), arguments=address)

    tracker.start(Progress(1))
    command = tracker._process.args
    tracker.close()

    assert SECRET not in " ".join(command)
    assert "user:***@127" in (tmp_path / EVENTS_FILE).read_text()
    assert SECRET not in (tmp_path / EVENTS_FILE).read_text()


def test_log_record_has_no_password():
    record = CleanRecord("dvc", logging.ERROR, "", 0, "cannot connect to %s", (API,), None)

    assert SECRET not in record.getMessage()


class Api(BaseHTTPRequestHandler):
    """The version of an API, for which a login is needed if the server says so."""

    def do_GET(self):
        allowed = not self.server.needs_login or "Authorization" in self.headers
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(json.dumps("3.8.8").encode())

    def log_message(self, *arguments):
        pass


@pytest.fixture(params=[True, False], ids=["login", "no login"])
def server(request):
    """Yield a server on loopback that needs a login, and one that does not."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as made:
        made.needs_login = request.param
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", ANY_HOST])
def test_doctor_warns_of_an_open_api_outside_of_loopback(server, host, monkeypatch):
    monkeypatch.setenv(prefect_api.URL, f"http://{host}:{server.server_port}")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "user:word")

    warnings = [each.message for each in check_prefect(5) if each.level is Level.WARNING]

    is_open = host == ANY_HOST and not server.needs_login
    assert any("needs no login" in each for each in warnings) == is_open
