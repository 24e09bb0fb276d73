"""What an isolated experiment would miss: `dvc exp run --temp` and the queue copy what git and DVC have."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.check import data_files, missing_deps, modules
from pipeline.doctor.diagnostics import Diagnostic, ok, problem, warning
from pipeline.engine.git import try_git
from pipeline.params import Params, read_params
from pipeline.versions import stale
from pipeline.yaml_files import read_yaml
from stages.contracts.errors import StageError

NAMED = 5


def check_project() -> Iterator[Diagnostic]:
    """Whether params.yaml is valid, and what of a user's own would not rerun a stage when it is edited."""
    for line in missing_deps(read_params()):
        what, _, entry = line.partition("; add to its deps:")
        stage = what.rpartition(" rerun ")[2]
        yield problem("deps", what, f"add to deps of {stage} in dvc.yaml:{entry}")
    for line in stale():
        what, _, cure = line.partition(": `")
        yield problem("versions", what.removeprefix("versions.yaml: "), f"`{cure}")
    yield ok("params", "params.yaml is valid")


def check_untracked_files() -> Iterator[Diagnostic]:
    """What a stage uses and neither git nor DVC has, and what else git does not have."""
    new = _git("ls-files", "--others", "--exclude-standard")
    if new is None:
        yield problem("untracked", "this is no git repository, and experiments are git's commits", "git init")
        return
    used = sorted(_used(read_params()))
    missing = [path for path in used if _is_inside(path) and path.exists() and not _is_had(path)]
    for path in missing:
        what = f"{path} is used, and neither git nor DVC has it: `dvc exp run --temp` would not find it"
        yield problem("untracked", what, f"git add {path}; or, for data, dvc add {path}")
    for path in used:
        if not _is_inside(path):
            what = (
                f"{path} is outside this project: `dvc exp run --temp` runs elsewhere, and would not find it"
            )
            yield warning("untracked", what, f"say where it is in full: {path.resolve()}")
    others = [name for name in new if not any(Path(name).is_relative_to(path) for path in missing)]
    if others:
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        what = f"not in git, so not in `dvc exp run --temp`: {', '.join(others[:NAMED])}{more}"
        yield warning(
            "untracked", what, "`git add` what a stage reads (no commit is needed); ignore the rest"
        )
    if not missing and not others:
        yield ok("untracked", "nothing that `dvc exp run --temp` would miss")


def _used(params: Params) -> set[Path]:
    """What params and dvc.yaml name: code and data, but for what the pipeline itself makes."""
    stages = list((read_yaml(Path("dvc.yaml")).get("stages") or {}).values())
    deps, made = (
        {Path(each) for stage in stages for each in _plain(stage.get(key))} for key in ("deps", "outs")
    )
    named = {dep for dep in deps if not any(dep.is_relative_to(each) for each in made)}
    for section in (params.load_data, params.build_learner, params.fit):
        named |= {*modules(section, Path()), *data_files(section)}
    return {path for path in named if not path.is_absolute()}


def _plain(entries: list[Any] | None) -> Iterator[str]:
    """The paths among a stage's *entries* but those of ``vars``, which the pipeline makes."""
    for entry in entries or []:
        path = next(iter(entry)) if isinstance(entry, dict) else str(entry)
        if "${" not in path and "://" not in path:
            yield path


def _is_inside(path: Path) -> bool:
    return path.resolve().is_relative_to(Path.cwd())


def _is_had(path: Path) -> bool:
    """Whether git has something at *path*, or DVC does, by a file ``….dvc`` beside it or above it."""
    noted = (Path(f"{each}.dvc") for each in (path, *path.parents) if each != Path())
    return bool(_git("ls-files", "--", str(path))) or any(map(Path.exists, noted))


def _git(*arguments: str) -> list[str] | None:
    """Return what git lists in this folder; None if it is not a repository, or git is missing."""
    try:
        done = try_git(Path(), arguments[0], "-z", *arguments[1:])
    except StageError:
        return None
    return done.stdout.split("\0")[:-1] if done.returncode == 0 else None
