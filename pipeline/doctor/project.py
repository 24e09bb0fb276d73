"""Checks of what a stage depends on: the deps in dvc.yaml, and files that git and DVC do not track.

`dvc exp run --temp` and the queue copy only what git and DVC track.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.doctor.diagnostics import Diagnostic, ok, problem, warning
from pipeline.project.check import find_data_files, find_missing_deps, find_modules
from pipeline.project.git import try_git
from pipeline.project.params import Params, read_params
from pipeline.project.paths import join_names
from pipeline.project.snapshot import path_of
from pipeline.project.versions import find_stale_versions
from pipeline.project.yaml_files import read_definition, stages_of
from stages.contracts.errors import StageError

MAX_LISTED_FILES = 5


def check_project() -> Iterator[Diagnostic]:
    """Check params.yaml, the deps in dvc.yaml, and versions.yaml.

    Raises `ParamsError` if params.yaml is not valid.
    """
    for line in find_missing_deps(read_params()):
        message, _, entry = line.partition("; add to its deps:")
        stage = message.rpartition(" rerun ")[2]
        yield problem("deps", message, f"add to deps of {stage} in dvc.yaml:{entry}")
    for line in find_stale_versions():
        message, _, remedy = line.removeprefix("versions.yaml: ").partition(". ")
        yield problem("versions", message, remedy)
    yield ok("params", "params.yaml is valid")


def check_untracked_files() -> Iterator[Diagnostic]:
    """Check that git or DVC tracks the files that stages use, and list other files that git lacks."""
    new = _list_with_git("ls-files", "--others", "--exclude-standard")
    if new is None:
        message = "this folder is not a git repository, and DVC stores experiments as git commits"
        yield problem("untracked", message, "git init")
        return
    used = sorted(_find_used_files(read_params()))
    missing = [path for path in used if _is_inside(path) and path.exists() and not _is_tracked(path)]
    for path in missing:
        message = (
            f"a stage uses {path}, which neither git nor DVC tracks: `dvc exp run --temp` does not copy it"
        )
        yield problem("untracked", message, f"git add {path}; or, for data, dvc add {path}")
    for path in used:
        if not _is_inside(path):
            message = f"{path} is outside this project: `dvc exp run --temp` runs in another folder"
            yield warning("untracked", message, f"use the absolute path: {path.resolve()}")
    others = [name for name in new if not any(Path(name).is_relative_to(path) for path in missing)]
    if others:
        listed = join_names(others, MAX_LISTED_FILES)
        message = f"not in git, so `dvc exp run --temp` does not copy them: {listed}"
        yield warning(
            "untracked", message, "`git add` what a stage reads (without a commit); ignore the rest"
        )
    if not missing and not others:
        yield ok("untracked", "git or DVC tracks every file that `dvc exp run --temp` needs")


def _find_used_files(params: Params) -> set[Path]:
    """Return the code and data that *params* and dvc.yaml name, except for outputs of stages."""
    stages = stages_of(read_definition()).values()
    deps, outputs = (
        {Path(path) for stage in stages for path in _literal_paths(stage.get(key))}
        for key in ("deps", "outs")
    )
    used = {dep for dep in deps if not any(dep.is_relative_to(output) for output in outputs)}
    for section in (params.load_data, params.build_learner, params.fit):
        used |= {*find_modules(section, Path()), *find_data_files(section)}
    return {path for path in used if not path.is_absolute()}


def _literal_paths(entries: list[Any] | None) -> Iterator[str]:
    """Yield the paths in *entries*, except for URLs and paths with ``${…}``, which stages write."""
    for path in map(path_of, entries or []):
        if "${" not in path and "://" not in path:
            yield path


def _is_inside(path: Path) -> bool:
    return path.resolve().is_relative_to(Path.cwd())


def _is_tracked(path: Path) -> bool:
    """Return whether git tracks *path*, or DVC does with a ``.dvc`` file for it or for a parent folder."""
    pointers = (Path(f"{tracked}.dvc") for tracked in (path, *path.parents) if tracked != Path())
    return bool(_list_with_git("ls-files", "--", str(path))) or any(map(Path.exists, pointers))


def _list_with_git(*arguments: str) -> list[str] | None:
    """Return what git lists in this folder; None if it is not a repository, or git is missing."""
    try:
        done = try_git(Path(), arguments[0], "-z", *arguments[1:])
    except StageError:
        return None
    return done.stdout.split("\0")[:-1] if done.returncode == 0 else None
