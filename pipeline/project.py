"""Where everything lies: the one place is ``vars`` in dvc.yaml."""

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from pipeline.lockfile import read_lockfile
from pipeline.yaml_files import read_yaml
from stages.contracts.errors import ParamsError
from stages.runs.layout import RUNS_FOLDER

StagePaths = TypeVar("StagePaths")


def read_paths(path: Path = Path("dvc.yaml")) -> dict[str, Path]:
    """Name to path, as ``vars: [{paths: …}]`` in *path* has them.

    Raises `ParamsError` where that is missing.
    """
    return paths_in(read_yaml(path), path)


def paths_in(content: Mapping[str, Any], source: Path | str) -> dict[str, Path]:
    """The same of *content*, which was read from *source*."""
    found = [each["paths"] for each in content.get("vars", []) if "paths" in each]
    if not found:
        raise ParamsError(f"{source} has no vars: [{{paths: …}}], from which the stages take their paths")
    return {name: Path(value) for name, value in found[0].items()}


def runs_root() -> Path:
    """Where the run stores are: in the user's own project, also in `dvc exp run --temp` and the queue."""
    return Path(os.environ.get("DVC_ROOT") or ".") / RUNS_FOLDER


def recorded_md5(output: Path, path: Path = Path("dvc.lock")) -> str | None:
    """Return the md5 of the file *output* that *path* has recorded; None if it has none."""
    for entry in (read_lockfile(path).get("stages") or {}).values():
        for out in entry.get("outs", []):
            if out["path"] == output.as_posix():
                return str(out.get("md5"))
    return None


def paths_of(kind: type[StagePaths], paths: dict[str, Path], **more: Any) -> StagePaths:
    """A stage's own ``Paths``, filled by name. Raises `ParamsError` for a name that dvc.yaml lacks."""
    names = [each.name for each in fields(kind) if each.name not in more]  # type: ignore[arg-type]
    missing = [name for name in names if name not in paths]
    if missing:
        raise ParamsError(f"dvc.yaml: vars.paths has no {', '.join(missing)}")
    return kind(**{name: paths[name] for name in names}, **more)
