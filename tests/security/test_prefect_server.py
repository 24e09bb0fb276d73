"""A real Prefect server with the settings of pipeline/flows/README.md, and a deployment that it serves."""

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect_servers import running_server
from waiting import LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SETTINGS = dict(
    re.findall(r"prefect config set (PREFECT\w+)=(\S+) ", (ROOT / "pipeline/flows/README.md").read_text())
)
"""The settings on the page."""
LOGIN = SETTINGS["PREFECT_API_AUTH_STRING"]
FOREIGN = "build_learner.model.kind='foreign:Net'"
MODULE = "from pathlib import Path\nPath(__file__).with_name('imported').touch()\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory, checked_out):
    """Yield a deployment that `learner serve` serves, in a project with a module that no param names."""
    folder = tmp_path_factory.mktemp("served")
    project = checked_out(folder / "project")
    project.edit("params.yaml", "num_epochs: 20", "num_epochs: 1")
    (project.folder / "foreign.py").write_text(MODULE)
    (folder / "server").mkdir()
    settings = {name: value for name, value in SETTINGS.items() if name.startswith("PREFECT_SERVER_")}
    with running_server(folder / "server", **settings) as server, (folder / "log").open("w") as log:
        access = {"PREFECT_API_URL": server.address, "PREFECT_API_AUTH_STRING": LOGIN}
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "serve", "--workspace", "--name", "daily"],
            cwd=project.folder,
            env=project.environment | access | {"PREFECT_RUNNER_POLL_FREQUENCY": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until(lambda: "serving learner/" in (folder / "log").read_text(), process=process)
            with temporary_settings({PREFECT_API_URL: server.address, PREFECT_API_AUTH_STRING: LOGIN}):
                yield SimpleNamespace(project=project, address=server.address)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(LIMIT_SECONDS)


def run(overrides):
    """Start a run of the deployment with *overrides*, and return it when it has ended."""
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("learner/daily")
        started = client.create_flow_run_from_deployment(deployment.id, parameters={"overrides": overrides})

        def has_ended():
            found = client.read_flow_run(started.id)
            return found if found.state and found.state.is_final() else None

        return wait_until(has_ended)


def test_foreign_kind_is_refused_with_one_message_before_anything_runs(served):
    lock = served.project.folder / "dvc.lock"
    before = lock.read_bytes() if lock.exists() else None

    ended = run([FOREIGN])

    assert ended.state.is_failed()
    assert ended.state.message.count("build_learner.model.kind") == 1
    assert "--allow-code" in ended.state.message
    assert not (served.project.folder / "imported").exists()
    assert (lock.read_bytes() if lock.exists() else None) == before


def test_harmless_override_works(served):
    assert run(["fit.batch_size=64"]).state.is_completed()


def test_entry_point_and_pull_steps_of_the_api_do_not_run(served):
    marker = served.project.folder / "pulled"
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("learner/daily")
        step = {"prefect.deployments.steps.run_shell_script": {"script": f"touch {marker}"}}
        client._client.post(
            "/deployments/",
            json={
                "name": "daily",
                "flow_id": str(deployment.flow_id),
                "entrypoint": "foreign.learner",
                "pull_steps": [step],
            },
        ).raise_for_status()
        assert client.read_deployment(deployment.id).pull_steps

    assert run([]).state.is_completed()
    assert not marker.exists()
    assert not (served.project.folder / "imported").exists()


def request(url, method, **headers):
    """Return the HTTP status and the headers of the response."""
    query = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310  loopback
    try:
        with urllib.request.urlopen(query) as answer:  # noqa: S310  the same
            return answer.status, answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.headers


def test_request_without_a_login_is_refused(served):
    assert request(f"{served.address}/admin/version", "GET")[0] == 401


def test_page_of_another_origin_may_send_no_request(served):
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}

    status, answered = request(f"{served.address}/flows/", "OPTIONS", **headers)

    assert status == 400
    assert "access-control-allow-origin" not in answered
