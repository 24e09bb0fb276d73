"""create-artifact-dir: prepare the directory of all outputs, and write the configuration that makes them."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.contracts.config import Config
from stages.contracts.errors import ParamsError
from stages.contracts.fields import FileName
from stages.contracts.files import write_text
from stages.contracts.text import to_json

VERSION = "5"

ENTRIES = {
    "config": "the whole resolved configuration",
    "layout": "this file",
    "learner": "what fit starts from: the records of epoch 0",
    "checkpoint": "model, optim, scheduler and trainer records of the epochs that stay",
    "train": "a log a metric and epoch of the train split, a line a batch",
    "valid": "the same of the valid split",
    "metrics": "the last and the best epoch's values",
    "plots": "a curve a metric",
    "model": "the trained model",
    "exports": "the same weights in other forms",
}
UNTRACKED = {
    "experiment.log": "what happened when, for people",
    "telemetry": "metrics of the clock and the machine",
    "test": "what evaluations measured",
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
    """A path for each name in `ENTRIES`."""


def create_artifact_dir(
    config: CreateArtifactDirConfig, paths: CreateArtifactDirPaths, resolved: Mapping[str, Any]
) -> None:
    """Write config.json (*resolved*, all sections) and layout.json, and remove files that no stage owns.

    layout.json changes only with VERSION and the paths, so a changed param does not rerun a stage that
    depends on it for the order. Raises `ParamsError` if the artifact directory contains the project.
    """
    entries = {paths.owned[name].name: meaning for name, meaning in ENTRIES.items()} | UNTRACKED
    _clear(paths.artifacts, {*entries, *config.keep, ".gitignore"})
    write_text(paths.config, to_json(resolved) + "\n")
    write_text(paths.layout, to_json({"version": VERSION, "entries": entries}) + "\n")


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
        if path.name in kept:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
