"""Paths of the project, which ``vars`` of dvc.yaml defines, and folders of the user.

In a folder of the user, no other user of the machine can write or read. DVC keeps its state, which it
unpickles, in a folder of mode 0777 that all users share, unless it is named another one.
"""

import os
import pwd
import stat
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from pipeline.project.lockfile import LOCKFILE, read_lockfile
from pipeline.project.yaml_files import read_yaml, stages_of
from stages.contracts.errors import ParamsError
from stages.runs.layout import RUNS_FOLDER

StagePaths = TypeVar("StagePaths")
SITE_CACHE_VARIABLE = "DVC_SITE_CACHE_DIR"
"""Environment variable of DVC with the folder of its state."""
STORES_VARIABLE = "LEARNER_PROJECT"
"""Environment variable with the folder of the user's project, for the processes in a copy of it."""
DVC_FOLDER = Path(".dvc")
UNUSABLE_CHARACTERS = "{}\n"
"""Characters that a path of a project or a cache must not contain: DVC formats it, git reads it as a line."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO


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
    sections = [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
    paths = next((section["paths"] for section in sections if "paths" in section), None)
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
    folder = Path.cwd()
    return next((parent / path for parent in (folder, *folder.parents) if (parent / path).exists()), path)


def runs_root() -> Path:
    """Return the folder of the run stores: in the user's project, even in `dvc exp run --temp`.

    If the .dvc of the project is in a folder above dvc.yaml, so are its run stores.
    """
    named = Path(os.environ.get(STORES_VARIABLE) or os.environ.get("DVC_ROOT") or "")
    if named == Path.cwd():  # as it is without DVC, so that messages show the same path
        return Path(RUNS_FOLDER)
    if named.parts or DVC_FOLDER.exists():
        return named / RUNS_FOLDER
    return find_above(DVC_FOLDER).parent / RUNS_FOLDER


def check_path(path: Path) -> None:
    """Raise `ParamsError` if the *path* of a project or a cache has one of `UNUSABLE_CHARACTERS`."""
    if characters := set(UNUSABLE_CHARACTERS) & set(str(path)):
        listed = ", ".join(map(repr, sorted(characters)))
        raise ParamsError(
            f"DVC and git cannot use the path {str(path)!r}, which contains {listed}. Rename it"
        )


def is_copy() -> bool:
    """Return whether the current folder is in a copy of the user's project, which has the run stores."""
    return find_above(DVC_FOLDER).resolve().parent != runs_root().resolve().parent


def find_output_md5(output: Path) -> str | None:
    """Return the md5 of the file *output* that dvc.lock has recorded; None if it has none."""
    for entry in stages_of(read_lockfile(LOCKFILE)).values():
        for out in entry.get("outs", []):
            if out["path"] == output.as_posix():
                return str(out.get("md5"))
    return None


def build_stage_paths(kind: type[StagePaths], paths: dict[str, Path], **more: Any) -> StagePaths:
    """Return the ``Paths`` of a stage. Raises `ParamsError` if dvc.yaml lacks a name that has no default."""
    names = [
        field.name
        for field in fields(kind)  # type: ignore[arg-type]
        if field.name in paths or field.default is MISSING
    ]
    return kind(**{name: paths[name] for name in names if name not in more}, **more)


def name_unknown_user(environment: MutableMapping[str, str] = os.environ) -> None:
    """Add a name and a home folder to *environment* if the system has no entry for this user.

    A container may run as any user id. DVC needs both; the home folder is the one that Docker sets.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        environment.setdefault("USER", str(os.getuid()))
        environment.setdefault("HOME", "/")


def locate_user_folder(name: str) -> Path:
    """Return the path of the folder *name* of this user, which may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "learner" / name


def make_user_folder(name: str) -> Path:
    """Return the folder *name* of this user, which has the mode 0700.

    Raises `PermissionError` if it belongs to another user, and `OSError` if it cannot be created.
    """
    folder = locate_user_folder(name)
    folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} is not a folder of this user. Remove it")
    if status.st_mode & OTHERS:
        folder.chmod(stat.S_IRWXU)
    return folder


def is_private(folder: Path) -> bool:
    """Return whether no other user can reach *folder*, because it or a folder above is of this user alone."""
    for path in (folder, *folder.parents):
        with suppress(OSError):
            status = path.stat()
            if status.st_uid == os.geteuid() and not status.st_mode & OTHERS:
                return True
    return False


def use_private_site_cache(environment: MutableMapping[str, str] = os.environ) -> None:
    """Name DVC a folder of this user in *environment*, unless that names another one."""
    with suppress(
        OSError, RuntimeError
    ):  # without a home folder, or with one that cannot be written, DVC's own
        default = str(locate_user_folder("dvc"))
        if environment.get(SITE_CACHE_VARIABLE, default) == default:
            environment[SITE_CACHE_VARIABLE] = str(make_user_folder("dvc"))
