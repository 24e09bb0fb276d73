"""Trackers in a process of their own: MLflow against a real server, W&B offline, and trackers that fail."""

import json
import logging
import random
import signal
import struct
import subprocess
import sys

import pytest
import torch
from mlflow_servers import serve
from run_files import read_run_files
from stop_after import StopAfter
from waiting import has_exited, wait_until

from stages.contracts.config import Use
from stages.contracts.errors import PluginError
from stages.contracts.history import Split
from stages.learner import LearnerBuilder
from stages.loggers import RunDescription, TrackerProcess, build_tracker
from stages.loggers.trackers import add_mlflow_names
from stages.metrics import LossMetric
from stages.models import ClassificationStep
from stages.optim import Adam
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer

RUN = RunDescription("a-key", {"fit": {"seed": 3, "metrics": ["loss"]}}, {"git.commit": "f" * 40})
RECORDING = '''
import json
class Recording:
    """A tracker that appends its calls to a file."""
    def __init__(self, directory, fails=False):
        self.file, self.fails = directory / "calls", fails
    def _append(self, *call):
        with self.file.open("a") as file:
            file.write(json.dumps(call) + "\\n")
    def start(self, run):
        self._append("start", run.name, run.params)
    def log(self, points):
        if self.fails:
            raise RuntimeError("no connection")
        for point in points:
            self._append("log", point.step, sorted(point.values))
    def finish(self, status, summary):
        self._append("finish", status, summary["epochs"])
        (self.file.parent / "summary").write_text(json.dumps(summary))

class Offline(Recording):
    starts_empty = True

class WithSamples(Recording):
    def log_samples(self, epoch, files):
        self._append("samples", epoch, {name: path.read_text() for name, path in files.items()})
'''


class Net(ClassificationStep, torch.nn.Linear):
    pass


def train(directory, tracker=None, epochs=2, kind=Net, validate_every=1, loader=list, stop_after=0):
    torch.manual_seed(0)
    random.seed(0)
    batches = [(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(3)]
    builder = LearnerBuilder(directory).devices(["cpu"]).metrics(LossMetric()).num_epochs(epochs).seed(1)
    builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto").renderer(NoRenderer())
    builder.validate_every(validate_every)
    if tracker:
        builder.with_progress_logger(tracker)
    builder.with_progress_logger(StopAfter(builder.interrupter(), stop_after))
    learner = builder.build(kind(4, 3), Adam(), 0.1)
    learner.fit(loader(batches), batches)
    return learner


@pytest.fixture
def recording(tmp_path, monkeypatch):
    """Return a function that returns a tracker which appends its calls to ``calls`` in a directory."""
    (tmp_path / "own_trackers.py").write_text(RECORDING)
    monkeypatch.syspath_prepend(tmp_path)

    def build(directory, kind="Recording", **arguments):
        return build_tracker(Use(kind=f"own_trackers:{kind}", **arguments), directory, RUN)

    return build


def calls(directory, kind="Recording"):
    return [json.loads(line) for line in (directory / kind / "calls").read_text().splitlines()]


def test_tracker_receives_the_description_each_epoch_and_the_end(recording, tmp_path):
    train(tmp_path / "run", recording(tmp_path))

    assert calls(tmp_path) == [
        ["start", "a-key", RUN.params],
        ["log", 1, ["train/Loss", "valid/Loss"]],
        ["log", 2, ["train/Loss", "valid/Loss"]],
        ["finish", "finished", 2],
    ]


class Describing(Net):
    def valid_step(self, batch):
        self.log_text("rows", str(len(batch[0])))
        self.log_image("row", batch[0][:1])
        return super().valid_step(batch)


def test_tracker_receives_the_samples_of_each_epoch(recording, tmp_path):
    class Texts(Net):
        def valid_step(self, batch):
            self.log_text("rows", str(len(batch[0])))
            return super().valid_step(batch)

    train(tmp_path / "run", recording(tmp_path / "run/telemetry", "WithSamples"), kind=Texts)

    found = [call for call in calls(tmp_path / "run/telemetry", "WithSamples") if call[0] == "samples"]
    files = {f"valid/rows-{number}": "8" for number in (1, 2, 3)}
    assert found == [["samples", 1, files], ["samples", 2, files]]


def test_run_with_a_tracker_has_the_bytes_of_one_without(recording, tmp_path):
    train(tmp_path / "tracked", recording(tmp_path))
    train(tmp_path / "plain")

    assert read_run_files(tmp_path / "tracked") == read_run_files(tmp_path / "plain")


def test_run_finishes_if_its_tracker_fails(recording, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        learner = train(tmp_path / "run", recording(tmp_path, fails=True))

    assert learner.epoch == 2
    assert "ended with 1, and has not received all values" in caplog.text
    assert "no connection" in (tmp_path / "Recording" / "tracker.log").read_text()


def test_resumed_run_sends_what_a_failed_tracker_has_not_received(recording, tmp_path):
    train(tmp_path / "run", recording(tmp_path, fails=True))

    train(tmp_path / "run", recording(tmp_path), epochs=3)

    assert [call[1] for call in calls(tmp_path) if call[0] == "log"] == [1, 2, 3]


def test_tracker_that_starts_empty_receives_all_points_of_a_resumed_run_and_its_last_end(recording, tmp_path):
    for epochs in (1, 3):
        train(tmp_path / "run", recording(tmp_path, "Offline"), epochs=epochs)

    steps = [(call[0], call[1]) for call in calls(tmp_path, "Offline") if call[0] != "start"]
    first = [("log", 1), ("finish", "finished")]
    assert steps == [*first, ("log", 1), ("log", 2), ("log", 3), ("finish", "finished")]


def test_summary_has_the_last_value_of_each_metric_also_of_earlier_processes(recording, tmp_path):
    for epochs in (1, 3, 3):  # the last process trains no epoch
        learner = train(tmp_path / "run", recording(tmp_path), epochs=epochs, validate_every=2)

    summary = json.loads((tmp_path / "Recording/summary").read_text())
    assert summary == {
        "epochs": 3,
        "train/Loss": learner.history.value(3, Split.TRAIN, "Loss"),
        "valid/Loss": learner.history.value(2, Split.VALID, "Loss"),
    }


class Stream:
    """A loader without a length."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


@pytest.mark.parametrize("stop_after", [2, 4, 6])
def test_batches_of_a_loader_without_a_length_are_counted_through_all_epochs(stop_after, recording, tmp_path):
    """The run stops in the training, in the validation or at the end of its first epoch."""
    for epochs, stop in ((2, stop_after), (2, 0), (3, 0)):
        tracker = recording(tmp_path, interval_seconds=1e-9)
        train(tmp_path / "run", tracker, epochs=epochs, loader=Stream, stop_after=stop)

    steps = [call[1] for call in calls(tmp_path) if call[0] == "log" and call[2] == ["running/train/Loss"]]
    assert steps == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_tracker_that_is_too_slow_is_ended(tmp_path, caplog):
    (tmp_path / "run").mkdir()
    tracker = TrackerProcess("time:sleep", tmp_path / "slow", RUN, arguments={}, wait_seconds=0.01)

    with caplog.at_level(logging.WARNING):
        train(tmp_path / "run", tracker)

    assert "has not received all values" in caplog.text


def test_process_of_a_tracker_ends_when_the_run_is_killed(recording, tmp_path):
    program = (
        "import os, sys, signal; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        "from stages.contracts.config import Use; from stages.contracts.events import Progress;"
        "from stages.loggers import RunDescription, build_tracker;"
        "tracker = build_tracker(Use(kind='own_trackers:Recording'), Path(sys.argv[1]), RunDescription());"
        "tracker.start(Progress(1)); print(tracker._process.pid, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False
    )

    pid = int(done.stdout)
    assert done.returncode == -signal.SIGKILL
    assert wait_until(lambda: has_exited(pid))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wait_seconds": 0}, "wait_seconds must be above 0; found 0"),
        ({"interval_seconds": "soon"}, "interval_seconds must be above 0; found 'soon'"),
        ({"project": "x"}, "unknown argument 'project'"),
    ],
)
def test_wrong_argument_of_a_tracker_is_refused_before_the_run(arguments, message, tmp_path):
    with pytest.raises(PluginError, match=message):
        build_tracker(Use(kind="mlflow", **arguments), tmp_path, RUN)


def test_missing_extra_of_a_tracker_is_refused_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("stages.contracts.plugins.find_spec", lambda name: None)

    with pytest.raises(PluginError, match=r"mlflow, which is not installed.*learner-pipeline\[mlflow\]"):
        build_tracker(Use(kind="mlflow"), tmp_path, RUN)


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory):
    """Run MLflow's server, and return its address."""
    with serve(tmp_path_factory.mktemp("mlflow")) as uri:
        yield uri


def assert_mlflow_has_params_metrics_and_artifacts_of_a_resumed_run(uri, directory):
    from mlflow.tracking import MlflowClient

    use = Use(kind="mlflow", uri=uri, experiment="digits")
    for epochs in (1, 3):
        learner = train(directory / "run", build_tracker(use, directory, RUN), epochs)

    client = MlflowClient(uri)
    [run] = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert (run.info.run_name, run.info.status) == ("a-key", "FINISHED")
    assert run.data.params == {"fit.seed": "3", "fit.metrics": "['loss']"}
    assert run.data.tags["git.commit"] == "f" * 40
    found = {point.step: point.value for point in client.get_metric_history(run.info.run_id, "valid/Loss")}
    assert found == learner.history.series("valid", "Loss")
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"params.json", "summary.json"}


@pytest.mark.long
def test_database_of_mlflow_has_params_metrics_and_artifacts_of_a_resumed_run(tmp_path, monkeypatch):
    pytest.importorskip("mlflow.server", reason="needs mlflow")
    monkeypatch.chdir(tmp_path)  # the artifacts are in the folder mlruns

    assert_mlflow_has_params_metrics_and_artifacts_of_a_resumed_run(
        f"sqlite:///{tmp_path}/mlflow.db", tmp_path
    )


@pytest.mark.long
def test_server_of_mlflow_has_params_metrics_and_artifacts_of_a_resumed_run(mlflow_server, tmp_path):
    assert_mlflow_has_params_metrics_and_artifacts_of_a_resumed_run(mlflow_server, tmp_path)


def test_names_that_differ_have_different_names_in_mlflow():
    names = add_mlflow_names({}, ["valid/F1 ä", "valid/F1 精", "valid/P%"])

    assert add_mlflow_names(names, ["valid/P#", "valid/P%", "valid/P_2"]) == {
        "valid/F1 ä": "valid/F1 ä",
        "valid/F1 精": "valid/F1 精",
        "valid/P%": "valid/P_",
        "valid/P#": "valid/P__2",
        "valid/P_2": "valid/P_2",
    }


def test_run_finishes_without_the_server_of_mlflow(tmp_path, caplog):
    use = Use(kind="mlflow", uri="http://127.0.0.1:9", wait_seconds=1)

    with caplog.at_level(logging.WARNING):
        learner = train(tmp_path / "run", build_tracker(use, tmp_path, RUN))

    assert learner.epoch == 2
    assert "took more than 1 seconds" in caplog.text or "ended with 1" in caplog.text


@pytest.mark.long  # test_tracker_receives_the_description_each_epoch_and_the_end
def test_wandb_stores_a_run_offline(tmp_path, caplog):
    pytest.importorskip("wandb")
    use = Use(kind="wandb", mode="offline", project="digits", wait_seconds=600)

    with caplog.at_level(logging.WARNING):
        train(tmp_path / "run", build_tracker(use, tmp_path, RUN))

    assert not caplog.text
    [stored] = (tmp_path / "wandb").glob("wandb/offline-run-*/run-*.wandb")
    content = stored.read_bytes()
    assert all(name in content for name in (b"train/Loss", b"valid/Loss", b"git.commit", b"a-key"))


@pytest.mark.long
def test_wandb_stores_samples_offline(tmp_path):
    pytest.importorskip("wandb")
    use = Use(kind="wandb", mode="offline", project="digits", wait_seconds=600)
    telemetry = tmp_path / "run/telemetry"

    train(tmp_path / "run", build_tracker(use, telemetry, RUN), kind=Describing)

    files = [path for path in telemetry.glob("wandb/wandb/offline-run-*/files/media/**/*") if path.is_file()]
    assert sorted(path.suffix for path in files) == [".html"] * 6 + [".png"] * 6
    assert "8" in next(path for path in files if path.suffix == ".html").read_text()


@pytest.mark.long
def test_mlflow_stores_samples_as_artifacts(tmp_path, monkeypatch):
    pytest.importorskip("mlflow.server", reason="needs mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)  # the artifacts are in the folder mlruns
    use = Use(kind="mlflow", uri=f"sqlite:///{tmp_path}/mlflow.db", wait_seconds=600)

    train(tmp_path / "run", build_tracker(use, tmp_path / "run/telemetry", RUN), kind=Describing)

    client = MlflowClient(use.uri)
    [run] = client.search_runs(["0"])
    found = {file.path for file in client.list_artifacts(run.info.run_id, "valid/epoch-2")}
    assert found == {
        f"valid/epoch-2/{name}"
        for number in (1, 2, 3)
        for name in (f"row-{number}.png", f"rows-{number}.txt")
    }


def read_wandb_rows(content):
    """Yield each row of the history in *content*, a log of LevelDB whose records fit into its first block."""
    from wandb.proto.wandb_internal_pb2 import Record

    start = 7
    while start < min(len(content), 1 << 15):
        [size] = struct.unpack_from("<H", content, start + 4)
        record = Record.FromString(content[start + 7 : start + 7 + size])
        if record.history.item:
            yield {item.nested_key[0] if item.nested_key else item.key: item for item in record.history.item}
        start += 7 + size


@pytest.mark.long  # test_tracker_that_starts_empty_receives_all_points_of_a_resumed_run_and_its_last_end
def test_wandb_stores_a_resumed_run_offline_as_one_run_with_all_steps(tmp_path):
    pytest.importorskip("wandb")
    use = Use(kind="wandb", mode="offline", project="digits", wait_seconds=600)
    for epochs in (1, 3):
        train(tmp_path / "run", build_tracker(use, tmp_path, RUN), epochs)

    [stored] = (tmp_path / "wandb").glob("wandb/offline-run-*/run-*.wandb")
    rows = list(read_wandb_rows(stored.read_bytes()))
    steps = [(row["_step"].value_json, row["epoch"].value_json) for row in rows]
    assert steps == [("0", "1"), ("1", "2"), ("2", "3")]
