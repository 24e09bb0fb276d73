"""Where the project stands, from what DVC knows."""

from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline.bodies import STAGES
from pipeline.commands.runs import lines as run_lines
from pipeline.lockfile import check_lock
from pipeline.paths import read_paths, runs_root
from pipeline.torn import LOCK, mend
from stages.contracts.errors import StageFailedError


def status_lines() -> list[str]:
    """A line for each stage, one that says which epochs have a checkpoint, and one for each run store."""
    mend()
    check_lock(LOCK)
    try:
        with Repo() as repo:
            changed = repo.status()
    except DvcException as error:
        raise StageFailedError(str(error)) from error
    width = max(map(len, STAGES))
    lines = [
        f"{name:<{width}}  version {stage.version}  {_changes(changed.get(name))}"
        for name, stage in STAGES.items()
    ]
    return [*lines, _checkpoints(read_paths()["checkpoint"]), *run_lines(runs_root())]


def _changes(entries: list[Any] | None) -> str:
    if not entries:
        return "up to date"
    found = []
    for entry in entries:
        if not isinstance(entry, dict):
            found.append(str(entry))
            continue
        for kind, names in entry.items():
            found += [f"{kind.removeprefix('changed ')} {_named(names)}"]
    return "changed: " + "; ".join(found)


def _named(names: Any) -> str:
    if not isinstance(names, dict):
        return str(names)
    return ", ".join(
        f"{name} ({_named(what)})" if isinstance(what, dict) else f"{name} {what}"
        for name, what in names.items()
    )


def _checkpoints(directory: Path) -> str:
    found = sorted(
        int(path.name.split(".")[0].removeprefix("trainer-")) for path in directory.glob("trainer-*")
    )
    return f"checkpoints of epoch {', '.join(map(str, found))}" if found else "no checkpoint yet"
