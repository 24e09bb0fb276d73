"""Folders of this user, in which no other user of the machine can write or read.

DVC keeps its state, which it unpickles, in a folder of mode 0777 that all users share, unless it is named
another one. This module imports no package of ours, because it runs before their names are checked.
"""

import os
import stat
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

SITE_CACHE_VARIABLE = "DVC_SITE_CACHE_DIR"
"""Environment variable of DVC with the folder of its state."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def locate_user_folder(name: str) -> Path:
    """Return the path of the folder *name* of this user, which may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "learner" / name


def make_user_folder(name: str) -> Path:
    """Return the folder *name* of this user, which has the mode 0700.

    Raises `PermissionError` if it belongs to another user, and `OSError` if it cannot be created.
    """
    folder = locate_user_folder(name)
    folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} is not a folder of this user. Remove it")
    if found.st_mode & OTHERS:
        folder.chmod(stat.S_IRWXU)
    return folder


def is_private(folder: Path) -> bool:
    """Return whether no other user can reach *folder*, because it or a folder above is of this user alone."""
    for path in (folder, *folder.parents):
        with suppress(OSError):
            found = path.stat()
            if found.st_uid == os.geteuid() and not found.st_mode & OTHERS:
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
