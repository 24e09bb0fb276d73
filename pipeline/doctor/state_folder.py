"""Check of the folder in which ``dvc`` keeps its state, which it unpickles: no other user may write there."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from dvc.config import Config, ConfigError
from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline.doctor.diagnostics import Diagnostic, ok, warning
from pipeline.doctor.stale_files import FIX
from pipeline.user_folder import SITE_CACHE_VARIABLE, is_private, make_user_folder

START_ENVIRONMENT = Path("/proc/self/environ")
"""The variables with which this process was started, without those that a command of ours has set since."""
SHARED_FOLDER = Path("/var/tmp/dvc")  # noqa: S108  that of DVC
"""The folder of DVC's state if nothing names another one."""


def check_state_folder() -> Iterator[Diagnostic]:
    """Check that no other user can write where DVC keeps its state when the user runs ``dvc``."""
    try:
        directory = Repo.find_dvc_dir()
        configured = Config(directory)["core"].get("site_cache_dir")
    except (DvcException, ConfigError):
        return
    folder = Path(_read_variable() or configured or SHARED_FOLDER)
    if is_private(folder):
        yield ok("state", f"DVC keeps its state in {folder}, which only you can write")
        return
    message = f"dvc keeps its state, which it unpickles, in {folder}, where other users can write"
    remedy = f"Set core.site_cache_dir or {SITE_CACHE_VARIABLE} to a folder of yours: {FIX}"
    yield warning("state", message, remedy, partial(_use_user_folder, directory))


def _read_variable() -> str | None:
    name = f"{SITE_CACHE_VARIABLE}=".encode()
    for each in START_ENVIRONMENT.read_bytes().split(b"\0"):
        if each.startswith(name):
            return os.fsdecode(each.removeprefix(name))
    return None


def _use_user_folder(directory: str) -> None:
    """Name the folder of this user in the settings of this clone, which git ignores."""
    folder = make_user_folder("dvc")
    with Config(directory).edit("local") as settings:
        settings["core"]["site_cache_dir"] = str(folder)
