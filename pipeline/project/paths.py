"""Paths of the project, all of which are defined in ``vars`` of dvc.yaml."""

import os
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from pipeline.project.lockfile import read_lockfile
from pipeline.project.yaml_files import read_yaml
from stages.contracts.errors import ParamsError
from stages.runs.layout import RUNS_FOLDER

StagePaths = TypeVar("StagePaths")


class ProjectPaths(dict[str, Path]):
    """The paths by name; a missing one raises `ParamsError`, since a project may lack some of our stages."""

    def __missing__(self, name: str) -> Path:
        raise ParamsError(f"dvc.yaml: vars.paths has no {name}, which this command needs. Add it")


def read_paths(path: Path = Path("dvc.yaml")) -> dict[str, Path]:
    """Return the paths in ``vars: [{paths: …}]`` of the file *path*, by name.

    Raises `ParamsError` if they are missing.
    """
    return parse_paths(read_yaml(path), path)


def parse_paths(content: Mapping[str, Any], source: Path | str) -> dict[str, Path]:
    """Return the paths in *content*, read from *source*.

    Raises `ParamsError` if they are missing, and if one is not text.
    """
    entries = content.get("vars")
    sections = [each for each in entries if isinstance(each, Mapping)] if isinstance(entries, list) else []
    paths = next((each["paths"] for each in sections if "paths" in each), None)
    if not isinstance(paths, Mapping):
        raise ParamsError(f"{source} has no vars: [{{paths: …}}], from which stages read their paths. Add it")
    for name, value in paths.items():
        if not isinstance(value, str):
            raise ParamsError(
                f"{source}: vars.paths.{name} must be a path; found {value!r}. Write it as text"
            )
    return ProjectPaths({name: Path(value) for name, value in paths.items()})


def find_above(path: Path) -> Path:
    """Return *path* in the current folder or the nearest one above it that has it; as it is if none has."""
    here = Path.cwd()
    return next((each / path for each in (here, *here.parents) if (each / path).exists()), path)


def runs_root() -> Path:
    """Return the folder of the run stores: in the user's project, even in `dvc exp run --temp`."""
    return Path(os.environ.get("DVC_ROOT") or ".") / RUNS_FOLDER


def find_output_md5(output: Path, path: Path = Path("dvc.lock")) -> str | None:
    """Return the md5 of the file *output* that *path* has recorded; None if it has none."""
    for entry in (read_lockfile(path).get("stages") or {}).values():
        for out in entry.get("outs", []):
            if out["path"] == output.as_posix():
                return str(out.get("md5"))
    return None


def build_stage_paths(kind: type[StagePaths], paths: dict[str, Path], **more: Any) -> StagePaths:
    """Return the ``Paths`` of a stage. Raises `ParamsError` if dvc.yaml lacks a name that has no default."""
    own = [each for each in fields(kind) if each.name not in more]  # type: ignore[arg-type]
    missing = [each.name for each in own if each.name not in paths and each.default is MISSING]
    if missing:
        raise ParamsError(f"dvc.yaml: vars.paths has no {', '.join(missing)}. Add it")
    return kind(**{each.name: paths[each.name] for each in own if each.name in paths}, **more)
