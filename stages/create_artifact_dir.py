"""create-artifact-dir: the directory that all outputs go to, with the configuration that makes them."""

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

VERSION = "4"

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
    """Names in the artifact directory that are left alone although no stage makes them."""


@dataclass(frozen=True)
class CreateArtifactDirPaths:
    """What the stage writes, and every path that a stage owns."""

    artifacts: Path
    config: Path
    layout: Path
    owned: Mapping[str, Path]
    """A path for each of `ENTRIES`."""


def create_artifact_dir(
    config: CreateArtifactDirConfig, paths: CreateArtifactDirPaths, resolved: Mapping[str, Any]
) -> None:
    """Write config.json (*resolved*, all sections) and layout.json; remove what no stage owns.

    layout.json changes with VERSION and with the paths only, so what depends on it for its order is not
    rerun by a param.
    """
    entries = {paths.owned[name].name: meaning for name, meaning in ENTRIES.items()} | UNTRACKED
    _clear(paths.artifacts, {*entries, *config.keep, ".gitignore"})
    write_text(paths.config, to_json(resolved) + "\n")
    write_text(paths.layout, to_json({"version": VERSION, "entries": entries}) + "\n")


def _clear(directory: Path, kept: set[str]) -> None:
    if not directory.is_dir():
        return
    if directory.resolve() in {Path.cwd(), *Path.cwd().parents}:
        raise ParamsError(
            f"dvc.yaml: paths.artifacts is {str(directory)!r}, which holds the project itself; "
            "the artifact directory must be one of its own, as what no stage owns in it is removed"
        )
    for path in directory.iterdir():
        if path.name in kept:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
