"""create-artifact-dir: prepare the directory of all outputs, and write the configuration that makes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.contracts.config import Config
from stages.contracts.errors import ParamsError
from stages.contracts.fields import FileName
from stages.contracts.text import to_json
from stages.system.files import remove, write_text

VERSION = "7"

ENTRIES = {
    "config": "the resolved configuration of all stages",
    "layout": "this file",
    "learner": "the records that fit starts from",
    "checkpoint": "model, optim, scheduler and trainer records of the epochs that are kept",
    "train": "one log for each metric and epoch of the train split, with one line for each batch",
    "valid": "the same for the valid split",
    "metrics": "the metrics of the last and the best epoch",
    "plots": "one curve for each metric",
    "model": "the trained model",
    "exports": "the same weights in other formats",
}
UNTRACKED = {
    "experiment.log": "the log of the run, with times",
    "telemetry": "metrics that depend on the clock or the machine",
    "test": "the logs of evaluations",
}


class CreateArtifactDirConfig(Config):
    """The section ``create_artifact_dir``."""

    keep: tuple[FileName, ...] = ()
    """Names in the artifact directory that are not removed although no stage writes them."""


@dataclass(frozen=True)
class CreateArtifactDirPaths:
    """The paths that the stage writes, and those that all stages own."""

    artifacts: Path
    config: Path
    layout: Path
    owned: Mapping[str, Path]
    """The paths in dvc.yaml by name: those of `ENTRIES`, and those of stages of the user."""


def create_artifact_dir(
    config: CreateArtifactDirConfig, paths: CreateArtifactDirPaths, resolved: Mapping[str, Any]
) -> None:
    """Write config.json (*resolved*, all sections) and layout.json, and remove files that no stage owns.

    layout.json changes only with VERSION, the paths and ``fit.portable``, with which initial weights change.
    No other param reruns build-learner, which depends on it. Raises `ParamsError` if the artifact directory
    contains the project.
    """
    owned = paths.owned
    entries = {owned[name].name: meaning for name, meaning in ENTRIES.items() if name in owned} | UNTRACKED
    below = (path.relative_to(paths.artifacts) for path in owned.values() if paths.artifacts in path.parents)
    _clear(paths.artifacts, {*entries, *(path.parts[0] for path in below), *config.keep, ".gitignore"})
    write_text(paths.config, to_json(resolved) + "\n")
    portable = {"portable": True} if resolved.get("fit", {}).get("portable") else {}
    write_text(paths.layout, to_json({"version": VERSION, "entries": entries, **portable}) + "\n")


def _clear(directory: Path, kept: set[str]) -> None:
    """Remove everything in *directory* except the names *kept*."""
    if not directory.is_dir():
        return
    if directory.resolve() in {Path.cwd(), *Path.cwd().parents}:
        raise ParamsError(
            f"dvc.yaml: paths.artifacts is {str(directory)!r}, which contains the project. Set it to another "
            "directory: files in it that no stage owns are removed"
        )
    for path in directory.iterdir():
        if path.name not in kept:
            remove(path)
