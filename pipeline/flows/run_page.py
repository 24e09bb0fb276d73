"""The artifacts on the page of a flow run: summary, curves, checkpoint, and a comparison."""

import json
import re
import socket
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import ArtifactSort

from pipeline.comparison.plot_images import EXTRA, draw_image, is_available
from pipeline.flows.artifacts import Artifacts, short_timeout_client
from pipeline.project.git import run_git
from pipeline.project.revisions.revision import Results
from stages.contracts.errors import StageError
from stages.contracts.history import History
from stages.learner.summary import summary_rows

MAX_PREVIOUS_RECORDS = 20
"""The number of previous records among which that of the same project is searched."""


def write_artifacts(results: Results, run: FlowRun, artifacts: Artifacts, title: str) -> None:
    """Write the artifacts of *run* with its *results*; their keys begin with *title*.

    Raises one of `API_ERRORS` if one cannot be written.
    """
    prefix = slug(title)
    description = f"Learner summary, {results.epochs} epochs"
    artifacts.create("table", f"{prefix}-summary", _table(_summary(results)), description)
    write_curves(results, artifacts, f"{prefix}-curves")
    if results.checkpoint:
        model = results.checkpoint
        text = f"`{model.name}` is in the cache of this host: `{model.cached}`"
        if results.rev:
            text += f"\n\nIn any clone of this repository: `dvc get . {model.name} --rev {results.rev}`"
        artifacts.create("markdown", f"{prefix}-checkpoint", text, f"The model after epoch {model.epoch}")
    key = f"{prefix}-record"
    project = _identify_project()
    with short_timeout_client() as client:
        name, before = _last_record(client, run, key, project)
    now = {"metrics": dict(results.metrics), "params": dict(results.params), "project": project}
    rows = list(_differences(before, now))
    whose = "this deployment" if run.deployment_id else "this project"
    first = f"No previous run of {whose} has a record"
    description = f"Compared with {name}, the previous run of {whose}" if name else first
    artifacts.create("table", f"{prefix}-comparison", _table(rows), description)
    artifacts.create(
        "markdown", key, f"```json\n{json.dumps(now, indent=1)}\n```", "Params and metrics of the run"
    )


def write_curves(results: Results, artifacts: Artifacts, key: str) -> None:
    """Write an image of the curves; one that cannot be drawn is a warning."""
    if not is_available():
        artifacts.logger.info("no image of the curves, because vl-convert is missing. Run %s", EXTRA)
        return
    try:
        png = draw_image(_curves_specification(results.history), "png", scale=1.5)
    except Exception as error:  # noqa: BLE001  no picture may cost the run that it shows
        artifacts.logger.warning("the image of the curves cannot be drawn: %r", error)
        return
    url = f"data:image/png;base64,{b64encode(png).decode()}"
    artifacts.create("image", key, url, "The curves, epoch by epoch")


def _curves_specification(history: History) -> dict[str, Any]:
    """Return a Vega-Lite specification with a panel for each metric."""
    panel = {
        "width": 320,
        "height": 200,
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "epoch", "type": "quantitative", "axis": {"tickMinStep": 1}},
            "y": {"field": "value", "type": "quantitative", "title": None, "scale": {"zero": False}},
            "color": {"field": "split", "type": "nominal", "title": None},
        },
    }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": [asdict(value) for value in history]},
        "facet": {"field": "metric", "type": "nominal", "title": None},
        "columns": 2,
        "spec": panel,
        "resolve": {"scale": {"y": "independent"}},
    }


def _summary(results: Results) -> Iterator[dict[str, Any]]:
    for row in summary_rows(results.history):
        yield {
            "Split": row.split,
            "Metric": row.metric,
            "Min.": _number(row.min),
            "Epoch of min.": row.min_epoch,
            "Max.": _number(row.max),
            "Epoch of max.": row.max_epoch,
        }


def _identify_project() -> str:
    """Return the first commit of the project and its path in the repository, which its clones have too.

    Without a commit, return the host and the path of the folder.
    """
    folder = Path.cwd()
    with suppress(StageError):
        first = run_git(folder, "rev-list", "--max-parents=0", "HEAD").split()[-1]
        return f"{first}:{run_git(folder, 'rev-parse', '--show-prefix').strip()}"
    return f"{socket.gethostname()}:{folder}"


def _last_record(
    client: SyncPrefectClient, run: FlowRun, key: str, project: str
) -> tuple[str, Mapping[str, Any]]:
    """Return name and record of the previous run that has one; empty without one.

    It is one of the same deployment, or, for a run of the command line, one of the same *project*.
    """
    deployment = {"any_": [run.deployment_id]} if run.deployment_id else {"is_null_": True}
    same = FlowRunFilter.model_validate(
        {"deployment_id": deployment, "state": {"type": {"any_": ["COMPLETED"]}}}
    )
    records = ArtifactFilter.model_validate({"key": {"any_": [key]}})
    artifacts = client.read_artifacts(
        artifact_filter=records,
        flow_run_filter=same,
        sort=ArtifactSort.CREATED_DESC,
        limit=MAX_PREVIOUS_RECORDS,
    )
    for artifact in artifacts:
        match = re.search(r"\{.*\}", str(artifact.data), re.DOTALL)
        record = json.loads(match[0]) if match else {}
        if record and artifact.flow_run_id and (run.deployment_id or record.get("project") == project):
            return client.read_flow_run(artifact.flow_run_id).name, record
    return "", {}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each metric, and one for each param that has changed."""
    for section in ("metrics", "params"):
        old, new = before.get(section, {}), now[section]
        for name in sorted({*old, *new}):
            if section == "metrics" or (before and old.get(name) != new.get(name)):
                yield _row(name, old.get(name), new.get(name))


def _row(name: str, before: Any, now: Any) -> dict[str, Any]:
    both = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (before, now))
    difference = f"{now - before:+.4g}" if both else ""
    return {"name": name, "last run": _number(before), "this run": _number(now), "difference": difference}


def _number(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def _table(rows: Any) -> str:
    return json.dumps(list(rows))


def slug(title: str) -> str:
    """Return *title* in lower-case letters, digits and dashes, for a key of Prefect or a name of DVC."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "learner"
