"""`learner compare --watch` serves the page on loopback, and it follows the runs."""

import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import httpx
import pytest
from waiting import LIMIT_SECONDS, wait_until

from pipeline.comparison.runs import MetricCurve, ViewOptions
from pipeline.comparison.watch import Watcher, build_server
from pipeline.project.params import read_params
from pipeline.project.paths import find_output_md5
from stages.contracts.events import Progress
from stages.contracts.history import Direction
from stages.runs import HeartbeatRenderer, open_store
from stages.runs.key import plain

NAMES = "table.runs.map(run => run.name)"


@pytest.fixture
def client(finished, monkeypatch):
    """Return a client of a server of the comparison of a finished project."""
    monkeypatch.chdir(finished.folder)
    with build_server(Watcher(None, ViewOptions()), 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with httpx.Client(base_url=server.address, trust_env=False, timeout=LIMIT_SECONDS) as client:
            yield client
        server.shutdown()


@contextmanager
def running(project, *command):
    """Start *command* in *project* and yield the process, which is killed at the end if it still runs."""
    options = {"cwd": project.folder, "env": project.environment, "text": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def test_data_is_sent_only_if_a_run_has_changed(client, finished):
    first = client.get("/data.json")
    headers = {"If-None-Match": first.headers["ETag"]}

    assert [run["name"] for run in first.json()["table"]["runs"]] == ["workspace"]
    assert client.get("/data.json", headers=headers).status_code == 304

    finished.add_experiment("saved")
    second = client.get("/data.json", headers=headers)
    assert second.status_code == 200
    assert [run["name"] for run in second.json()["table"]["runs"]] == ["workspace", "saved"]


def read_column(client, key):
    """Return the value that each run has in the column *key*."""
    columns = client.get("/data.json").json()["table"]["columns"]
    return next(column["order"] for column in columns if column["key"] == key)


def test_values_of_a_run_at_work_are_those_at_its_last_heartbeat(client, finished):
    """The values follow the run within an epoch, also after a line that was incomplete when it was read."""
    finished.edit("params.yaml", "dropout: 0.5", "dropout: 0.25")
    found = []
    with open_store(Path(".runs"), {}) as store:
        log = store.path / "train/epoch-1/Loss.log"
        log.parent.mkdir(parents=True)
        heartbeat = HeartbeatRenderer(store.path, interval_seconds=0)
        for step, lines in enumerate(["2,1\n", "2,1\n4,", "2,1\n4,1\n"]):
            log.write_text(lines)
            heartbeat.step(Progress(epochs=9, epoch=1, batch=step))
            found.append(read_column(client, "train/Loss")[-1])
        table = client.get("/data.json").json()["table"]

    assert found == [2, 2, 3]
    assert [run["name"] for run in table["runs"]] == ["workspace", f"at work {store.key}"]
    assert table["params"]["build_learner.model.dropout"] == ["0.5", "0.25"]
    assert len(read_column(client, "train/Loss")) == 1


def read_differing(client):
    """Return the params that differ between the runs, with the value of each run."""
    params = client.get("/data.json").json()["table"]["params"]
    return {name: values for name, values in params.items() if len(set(values)) > 1}


def test_params_of_a_run_at_work_are_compared_in_the_form_of_finished_runs(client, finished):
    """The key has all defaults; an edit of params.yaml after the run has begun is not its param."""
    with open_store(Path(".runs"), {"params": plain(read_params().fit.key_params())}) as store:
        HeartbeatRenderer(store.path, interval_seconds=0).start(Progress(epochs=9))
        same = read_differing(client)
        finished.edit("params.yaml", "batch_size: 32", "batch_size: 64")
        finished.edit("params.yaml", "dropout: 0.5", "dropout: 0.25")
        HeartbeatRenderer(store.path, interval_seconds=0).start(Progress(epochs=9, epoch=2))
        edited = read_differing(client)

    assert same == {}
    assert edited == {"build_learner.model.dropout": ["0.5", "0.25"]}


def test_epoch_in_progress_is_neither_the_best_nor_the_last():
    curve = MetricCurve("train", "Loss", {1: 0.5, 2: 0.1}, Direction.LOWEST, open_epoch=2)

    assert (curve.best_epoch, curve.best, curve.last) == (1, 0.5, 0.5)
    assert MetricCurve("train", "Loss", {1: 0.5}, Direction.LOWEST, open_epoch=1).best == 0.5


def test_outputs_that_leave_the_cache_or_return_to_it_are_noticed(client, finished):
    finished.add_experiment("saved")
    md5 = find_output_md5(Path("artifacts/metrics.json"))
    path, moved = Path(".dvc/cache/files/md5", md5[:2], md5[2:]), Path("moved")

    assert read_column(client, "cached") == [1, 1]
    path.rename(moved)
    assert read_column(client, "cached") == [0, 0]
    moved.rename(path)
    assert read_column(client, "cached") == [1, 1]


def test_page_may_ask_its_own_server_only(client):
    page = client.get("/")

    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'; connect-src 'self'; script-src" in page.text
    assert client.get("/data.json").headers["ETag"] in page.text


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [("/", "example.org", 403), ("/params.yaml", None, 404), ("/../dvc.lock", None, 404)],
)
def test_other_hosts_and_other_files_are_refused(client, path, host, status):
    headers = {"Host": host} if host else {}

    assert client.get(path, headers=headers).status_code == status


def test_file_that_cannot_be_read_is_reported_until_it_is_repaired(client):
    lock = Path("dvc.lock")
    content = lock.read_bytes()
    before = client.get("/data.json")

    lock.write_text("a: [\n")
    answer = client.get("/data.json")
    assert (answer.status_code, "dvc.lock" in answer.text) == (503, True)

    lock.write_bytes(content)
    assert client.get("/data.json").json() == before.json()


def test_port_in_use_is_an_error_with_advice(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)
    with build_server(Watcher(None, ViewOptions()), 0) as server:
        done = finished.call("compare", "--watch", "--port", str(server.server_port))

    assert done.code == 2
    assert f"port {server.server_port} cannot be used: Address already in use. Name another" in done.err


def test_server_prints_its_address_and_stops_after_a_signal(finished, tmp_path):
    log = tmp_path / "log"
    server = finished.start_fork("pipeline", "compare", "--watch", log=log)
    [address] = wait_until(
        lambda: re.findall(r"^serving the page at (http://127\.0\.0\.1:\d+/), ", log.read_text()),
        log.read_text,
        server,
    )
    assert httpx.get(address, trust_env=False, timeout=LIMIT_SECONDS).status_code == 200

    server.send_signal(signal.SIGINT)

    assert server.wait(LIMIT_SECONDS) == 130
    assert log.read_text().splitlines()[1:] == [f"SIGINT: stopped serving {address}"]


@pytest.mark.long
def test_page_follows_a_run_at_work_and_keeps_the_filters(finished, browser):
    learner = (sys.executable, "-m", "pipeline")
    with running(finished, *learner, "compare", "--watch") as server:
        address = server.stdout.readline().split()[4].rstrip(",")
        browser.open(address)
        browser.wait("document.readyState === 'complete' && document.body.dataset.drawn")
        assert browser.run(NAMES) == ["workspace"]
        browser.wait("performance.getEntriesByName('first-contentful-paint').length")
        browser.write("#search", "num_epochs=500")

        finished.edit("params.yaml", "num_epochs: 2", "num_epochs: 500")
        finished.edit("params.yaml", "dropout: 0.5", "dropout: 0.25")
        with running(finished, *learner, "run") as training:
            browser.wait(f"{NAMES}.length === 2 && columnOf(table, 'epochs').order[1] >= 2")
            epochs = browser.run("columnOf(table, 'epochs').order[1]")
            browser.wait(f"columnOf(table, 'epochs').order[1] > {epochs}")
            assert browser.run(NAMES)[1].startswith("at work ")
            assert browser.run("table.params['build_learner.model.dropout'][1]") == "0.25"
            assert browser.run("document.getElementById('search').value") == "num_epochs=500"
            assert browser.run("listedRuns()") == [1]
            training.send_signal(signal.SIGINT)
            training.communicate(timeout=LIMIT_SECONDS)
        browser.wait(f"{NAMES}.length === 1")
        assert browser.messages() == []

        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=LIMIT_SECONDS)
        assert server.returncode == 130
        assert errors == f"SIGINT: stopped serving {address}\n"
        browser.wait("document.getElementById('watch').textContent.includes('the server has stopped')")
