"""The results of one run, in the workspace or at a revision: curves, metrics, params, newest checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.revisions.revision import Revision
from pipeline.yaml_files import read_yaml
from stages.checkpoints.file_names import parse_name
from stages.contracts.history import History
from stages.loggers.log_reader import count_epochs, read_history
from stages.runs.key import leaves


@dataclass(frozen=True)
class NewestModel:
    """The model of the newest checkpoint, as a file that later runs do not replace."""

    epoch: int
    name: str
    """Its path in the project."""
    cached: Path
    """Its file in DVC's cache."""


@dataclass(frozen=True)
class Results:
    """The results of one run."""

    rev: str | None
    """The revision; None for the workspace."""
    history: History
    epochs: int
    params: Mapping[str, Any]
    """Dotted name to value."""
    metrics: Mapping[str, float]
    """Dotted name to value, of the last epoch."""
    checkpoint: NewestModel | None


def read_results(rev: str | None = None) -> Results | None:
    """Return the results of revision *rev*, or of the workspace; None if it has no logs of a training.

    Raises `CheckpointError` if neither the cache nor a remote has what it recorded.
    """
    revision = Revision(rev)
    with TemporaryDirectory() as name:
        folder = Path(name)
        revision.copy(Path("params.yaml"), folder / "params.yaml")
        for output in ("train", "valid", "metrics"):
            if revision.exists(revision.paths[output]):
                revision.copy(revision.paths[output], folder / output)
        history = read_history(folder)
        if not len(history):
            return None
        metrics = leaves(read_yaml(folder / "metrics")) if (folder / "metrics").exists() else {}
        return Results(
            rev,
            history,
            count_epochs(folder),
            leaves(read_yaml(folder / "params.yaml")),
            {name: value for name, value in metrics.items() if isinstance(value, int | float)},
            _newest_model(revision),
        )


def _newest_model(revision: Revision) -> NewestModel | None:
    directory = revision.paths["checkpoint"]
    if not revision.exists(directory):
        return None
    parsed_names = ((parse_name(name), name) for name in revision.names(directory))
    found = {parsed.epoch: name for parsed, name in parsed_names if parsed and parsed.part == "model"}
    if not found:
        return None
    epoch = max(found)
    path = directory / found[epoch]
    cached = revision.path_in_cache(path)
    return NewestModel(epoch, path.as_posix(), cached) if cached else None
