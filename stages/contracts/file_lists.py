"""Names of files and objects in content of unknown origin: a dvc.lock, a list of DVC, a manifest, a journal.

No path is made of a name that leads out of its folder, or of a text that is not a hash.
"""

import json
import re
from pathlib import Path
from typing import Any

from stages.contracts.errors import StageError

_MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")
_NOT_IN_NAMES = {"", ".", ".."}


def is_name_below(name: Any) -> bool:
    """Return whether *name* is a path below a folder: relative, without ``..``, empty parts and NUL."""
    return isinstance(name, str) and "\0" not in name and _NOT_IN_NAMES.isdisjoint(name.split("/"))


def is_md5(name: Any) -> bool:
    """Return whether *name* is the name of an object of DVC: an MD5, for a list of files with ``.dir``."""
    return isinstance(name, str) and _MD5.fullmatch(name) is not None


def is_below(path: Path, root: Path) -> bool:
    """Return whether the folder of *path* is *root*, or is below it, after all links are resolved."""
    return path.parent.resolve().is_relative_to(root.resolve())


def parse_file_list(content: bytes, source: Path | str) -> dict[str, str]:
    """Return path to MD5 of each file in a directory from *content*, the list that DVC made of it.

    Raises `StageError`, which names *source*, if it is not such a list, or if a file would not be below that
    directory.
    """
    try:
        entries = [(entry["relpath"], entry["md5"]) for entry in json.loads(content)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StageError(f"{source} is not a list of files of DVC: {error!s:.200}") from error
    check_file_names([path for path, _ in entries], source)
    for path, md5 in entries:
        if not is_md5(md5):
            raise StageError(
                f"{source}: the file {path!r} has the hash {str(md5)[:60]!r}, which is not an MD5"
            )
    return dict(entries)


def check_file_names(names: list[Any], source: Path | str) -> None:
    """Raise `StageError`, which names *source*, unless each of *names* can be a file below one folder."""
    for name in names:
        if not is_name_below(name):
            raise StageError(
                f"{source} names the file {str(name)[:100]!r}, which is not below its folder. It was not "
                "written by DVC: do not use it"
            )
    waiting, folders = {name.rpartition("/")[0] for name in names}, {""}
    while waiting := waiting - folders:
        folders |= waiting
        waiting = {name.rpartition("/")[0] for name in waiting}
    if both := sorted(folders.intersection(names)):
        raise StageError(
            f"{source} names {both[0][:100]!r} as a file and as a folder. It was not written by DVC"
        )
