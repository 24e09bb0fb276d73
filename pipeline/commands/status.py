"""The command ``learner status``."""

from pathlib import Path
from typing import Any

from stages.contracts.printing import print_line


def status() -> None:
    """Print the state of each stage, what changed in stages that are out of date, and all runs.

    Example: learner status
    """
    for line in status_lines():
        print_line(line)


def status_lines() -> list[str]:
    """Return a line for each stage of dvc.yaml, one with the epochs of checkpoints, and one for each run."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    from pipeline.commands.runs import describe_runs
    from pipeline.project.check import is_custom
    from pipeline.project.paths import read_paths, runs_root
    from pipeline.project.revisions.dvc_checks import apply_checks, check_places
    from pipeline.project.versions import VERSIONS
    from stages.contracts.errors import StageError, StageFailedError

    definition = _read_files()
    apply_checks()
    try:
        with Repo() as repo:
            try:
                changed = repo.status()
            except AssertionError:  # DVC cannot read an output outside of the project
                check_places(repo)
                raise
    except StageError:
        raise
    except DvcException as error:
        raise StageFailedError(
            f"{error}. If a process was killed before, run `learner doctor --fix`"
        ) from error
    stages = list(definition.get("stages") or {})
    names = [
        *(each for each in stages if each not in VERSIONS),
        *(each for each in VERSIONS if each in stages),
    ]
    kinds = ["own program" if is_custom(each, definition) else f"version {VERSIONS[each]}" for each in names]
    width = max(map(len, names))
    lines = [
        f"{name:<{width}}  {kind}  {_describe_changes(changed.get(name))}"
        for name, kind in zip(names, kinds, strict=True)
    ]
    return [*lines, _describe_checkpoints(read_paths()["checkpoint"]), *describe_runs(runs_root())]


def _read_files() -> dict[str, Any]:
    """Return the content of dvc.yaml, after a check that DVC can read the files that it reads too.

    Raises `StageError` if it cannot.
    """
    from pipeline.project.check import PARAMS
    from pipeline.project.lockfile import is_truncated, read_lockfile
    from pipeline.project.yaml_files import read_definition, read_yaml
    from stages.contracts.errors import StageError

    lockfile = Path("dvc.lock")
    if is_truncated(lockfile):
        raise StageError(
            f"{lockfile} is truncated, as by a kill or a full disk. `learner run` and `learner doctor --fix` "
            "restore it"
        )
    read_lockfile(lockfile)
    if PARAMS.exists():
        read_yaml(PARAMS)
    return read_definition()


def _describe_changes(entries: list[Any] | None) -> str:
    if not entries:
        return "up to date"
    found = []
    for entry in entries:
        if not isinstance(entry, dict):
            found.append(str(entry))
            continue
        for kind, names in entry.items():
            found += [f"{kind.removeprefix('changed ')} {_describe_names(names)}"]
    return "changed: " + "; ".join(found)


def _describe_names(names: Any) -> str:
    if not isinstance(names, dict):
        return str(names)
    return ", ".join(
        f"{name} ({_describe_names(what)})" if isinstance(what, dict) else f"{name} {what}"
        for name, what in names.items()
    )


def _describe_checkpoints(directory: Path) -> str:
    from stages.runs.file_names import list_epochs

    found = list_epochs(directory)
    return (
        f"checkpoints of epoch {', '.join(map(str, found))}"
        if found
        else f"no checkpoint in {directory} until fit has finished"
    )
