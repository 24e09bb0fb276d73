"""The results of a run, in the workspace or as an experiment: history, metrics, params, checkpoint."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dvc.api import DVCFileSystem
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.scm import RevError

from pipeline.engine.cache_content import remove_damaged_files
from pipeline.project import read_paths
from pipeline.yaml_files import read_yaml
from stages.checkpoints.file_names import parse_name
from stages.contracts.errors import StageError
from stages.contracts.history import History
from stages.loggers.reading import count_epochs, read_history
from stages.runs.key import leaves


@dataclass(frozen=True)
class Checkpoint:
    """The model of the newest checkpoint in DVC's cache, which later runs do not replace."""

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
    """Dotted name to value in the last epoch."""
    checkpoint: Checkpoint | None


def read_results(rev: str | None = None) -> Results | None:
    """Return the results of revision *rev*, or of the workspace; None if it has no logs of training.

    Raises `StageError` if its outputs are no longer in the cache.
    """
    try:
        with _files(rev) as (files, folder):
            return _read(rev, files, folder)
    except (DvcException, RevError, FileNotFoundError) as error:
        raise StageError(
            f"cannot read the outputs of {rev or 'the workspace'}: {error}. Run `dvc pull`"
        ) from error


@contextmanager
def _files(rev: str | None) -> Iterator[tuple[DVCFileSystem, Path]]:
    with TemporaryDirectory() as folder:
        yield DVCFileSystem(".", rev=rev), Path(folder)


def _read(rev: str | None, files: DVCFileSystem, folder: Path) -> Results | None:
    for name in ("params.yaml", "dvc.yaml"):
        files.get(name, str(folder / name))
    paths = read_paths(folder / "dvc.yaml")
    for name in ("train", "valid", "metrics"):
        if files.exists(paths[name].as_posix()):
            remove_damaged_files(files, paths[name].as_posix())
            files.get(paths[name].as_posix(), str(folder / name), recursive=True)
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
        _checkpoint(files, paths["checkpoint"]),
    )


def _checkpoint(files: DVCFileSystem, directory: Path) -> Checkpoint | None:
    if not files.exists(directory.as_posix()):
        return None
    names = [Path(each).name for each in files.ls(directory.as_posix(), detail=False)]
    found = {parsed.epoch: name for name in names if (parsed := parse_name(name)) and parsed.part == "model"}
    if not found:
        return None
    epoch = max(found)
    path = directory / found[epoch]
    recorded = files.info(path.as_posix()).get("dvc_info") or {}
    if "md5" not in recorded:
        return None
    with Repo() as repo:
        cached = Path(repo.cache.local.oid_to_path(recorded["md5"]))
    return Checkpoint(epoch, path.as_posix(), cached)
