"""Clients of MLflow and Weights & Biases, which `stages.loggers.tracking` calls in a process of their own."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from html import escape
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from stages.contracts.config import flatten
from stages.contracts.deliveries import OFFLINE_RUNS, list_offline_runs
from stages.contracts.plugins import load_extra
from stages.loggers.tracking import Point, RunDescription
from stages.system.files import write_text
from stages.system.processes import module_command

RUN_FILE = "run.json"
"""The id of the run, with which a resumed run continues it."""
STATUSES = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
"""The status of a run in MLflow."""
MAX_PARAMS = 100
"""The most params in one request to MLflow."""
MAX_METRICS = 1000
"""The most values of metrics in one request."""
MAX_PARAM_LENGTH = 6000
"""The most characters of a param in MLflow."""


class MlflowTracker:
    """A run in MLflow. Needs the extra ``mlflow``.

    *uri* is the address of a server, or of a database such as ``sqlite:///mlflow.db``; None for MLflow's
    default, which the variable ``MLFLOW_TRACKING_URI`` sets. The params and the summary are also stored as
    artifacts, ``params.json`` and ``summary.json``.
    """

    def __init__(self, directory: Path, *, uri: str | None = None, experiment: str = "Default") -> None:
        client = load_extra("mlflow.tracking", "mlflow", "the logger mlflow")
        self._entities = load_extra("mlflow.entities", "mlflow", "the logger mlflow")
        self._client = client.MlflowClient(uri)
        self._experiment = experiment
        self._file = directory / RUN_FILE
        self._id = ""
        self._names: dict[str, str] = {}
        """The names of the metrics that were sent, and those that they have in MLflow."""

    def start(self, run: RunDescription) -> None:
        """Create the run with its params and tags, or mark the existing one as running."""
        run_id = read_run_id(self._file)
        if run_id:
            self._id = run_id
            self._client.update_run(run_id, status="RUNNING")
        else:
            self._id = self._create(run)
            write_run_id(self._file, self._id)
        self._client.log_dict(self._id, dict(run.params), "params.json")

    def _create(self, run: RunDescription) -> str:
        existing = self._client.get_experiment_by_name(self._experiment)
        experiment = existing.experiment_id if existing else self._client.create_experiment(self._experiment)
        created = self._client.create_run(experiment, run_name=run.name, tags=dict(run.tags))
        values = flatten(run.params)
        names = add_mlflow_names({}, values)
        params = [
            self._entities.Param(names[name], str(value)[:MAX_PARAM_LENGTH]) for name, value in values.items()
        ]
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(created.info.run_id, params=params[start : start + MAX_PARAMS])
        return str(created.info.run_id)

    def log(self, points: Sequence[Point]) -> None:
        """Send *points*."""
        self._names = add_mlflow_names(self._names, (name for point in points for name in point.values))
        metrics = [
            self._entities.Metric(self._names[name], value, round(point.time * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for start in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._id, metrics=metrics[start : start + MAX_METRICS])

    def log_samples(self, epoch: int, files: Mapping[str, Path]) -> None:
        """Store *files* as artifacts in ``train/epoch-<n>`` and ``valid/epoch-<n>``."""
        for name, path in files.items():
            self._client.log_artifact(self._id, str(path), f"{name.partition('/')[0]}/epoch-{epoch}")

    def finish(self, status: str, summary: Mapping[str, Any]) -> None:
        """End the run."""
        self._client.log_dict(self._id, dict(summary), "summary.json")
        self._client.set_terminated(self._id, STATUSES[status])


class WandbTracker:
    """A run in Weights & Biases. Needs the extra ``wandb``.

    *mode* is ``online``, ``offline`` (``learner runs sync`` sends the run later) or None for the default,
    which the variable ``WANDB_MODE`` sets. *project* and *entity* are those of W&B.

    W&B cannot continue a run offline: a second one of the same id would replace the first on the server. A
    resumed run is therefore stored again, with all of its points, and replaces what was stored before.
    """

    def __init__(
        self,
        directory: Path,
        *,
        project: str | None = None,
        entity: str | None = None,
        mode: str | None = None,
    ) -> None:
        self._wandb = load_extra("wandb", "wandb", "the logger wandb")
        self._directory = directory
        self._options = {"project": project, "entity": entity, "mode": mode}
        self._run: Any = None
        self.starts_empty = False
        """True if the run is stored offline."""

    def start(self, run: RunDescription) -> None:
        """Create or resume the run, with its params as the config and its tags as notes."""
        file = self._directory / RUN_FILE
        identifier = read_run_id(file) or uuid4().hex[:12]
        write_run_id(file, identifier)
        self._run = self._wandb.init(
            id=identifier,
            name=run.name,
            config={**run.params, "tags": dict(run.tags)},
            dir=str(self._directory),
            resume="allow",
            settings=self._wandb.Settings(console="off", save_code=False, disable_git=True),
            **{name: value for name, value in self._options.items() if value is not None},
        )
        self.starts_empty = bool(self._run.offline)
        if self.starts_empty:
            self._remove_earlier_runs()
        self._run.define_metric("epoch")
        self._run.define_metric("batch")
        self._run.define_metric("*", step_metric="epoch")
        self._run.define_metric("running/*", step_metric="batch")

    def log(self, points: Sequence[Point]) -> None:
        """Send *points*: values of epochs by ``epoch``, means of an epoch so far by ``batch``."""
        for point in points:
            axis = "batch" if all(name.startswith("running/") for name in point.values) else "epoch"
            self._run.log({**point.values, axis: point.step})

    def log_samples(self, epoch: int, files: Mapping[str, Path]) -> None:
        """Send images and texts by ``epoch``."""
        media = {
            name: self._wandb.Image(str(path))
            if path.suffix == ".png"
            else self._wandb.Html(f"<pre>{escape(path.read_text(errors='replace'))}</pre>", inject=False)
            for name, path in files.items()
        }
        self._run.log({**media, "epoch": epoch})

    def upload(self) -> None:
        """Send the runs that are stored offline. Raises `CalledProcessError` if ``wandb sync`` fails."""
        for path in list_offline_runs(self._directory):
            subprocess.run(module_command("wandb", "sync", str(path)), check=True)  # noqa: S603  no shell

    def _remove_earlier_runs(self) -> None:
        for path in self._directory.glob(OFFLINE_RUNS):
            if path.resolve() != Path(self._run.dir).parent.resolve():
                shutil.rmtree(path, ignore_errors=True)

    def finish(self, status: str, summary: Mapping[str, Any]) -> None:
        """End the run."""
        self._run.summary.update({**summary, "status": status})
        self._run.finish(exit_code=0 if status == "finished" else 1)


def read_run_id(file: Path) -> str | None:
    """Return the id that *file* has; None if it does not exist or is incomplete."""
    with suppress(OSError, ValueError, KeyError):
        return str(json.loads(file.read_text())["id"])
    return None


def write_run_id(file: Path, identifier: str) -> None:
    """Write the id of the run to *file*."""
    write_text(file, json.dumps({"id": identifier}) + "\n")


def add_mlflow_names(names: Mapping[str, str], additional: Iterable[str]) -> dict[str, str]:
    """Return *names* and, for each of *additional*, the name that MLflow accepts.

    It has ``_`` for each character that is neither a letter of any script, a digit, nor one of ``-. /``, and
    a number at its end if another name has become the same.
    """
    result = dict(names)
    used = set(result.values())
    for name in additional:
        if name not in result:
            short = re.sub(r"[^\w\-. /]", "_", name)
            others = (f"{short}_{number}" for number in count(2))
            result[name] = next(other for other in others if other not in used) if short in used else short
            used.add(result[name])
    return result
