"""Reads of files of unknown origin, atomic writes, syncs to disk, and checks of names and of contents.

A dvc.lock, a list of DVC, a manifest and a journal are of unknown origin: no path is made of a name in them
that leads out of its folder, or of a text that is not a hash.
"""

import ctypes
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader, FileIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from stages.contracts.errors import StageError
from stages.contracts.text import to_json
from stages.system.file_lock import is_at, open_to_read, try_lock, try_shared_lock

if TYPE_CHECKING:
    from pydantic import BaseModel

PART_SUFFIX = ".part"
"""Suffix of the names of temporary files and directories, which begin with a dot."""
MAX_LIST_BYTES = 1 << 30
"""Largest list of files that is read; that of a million files has 100 MB."""
CHUNK_BYTES = 1 << 20
"""The number of bytes copied at a time."""
UNREADABLE = {"size": -1, "sha256": ""}
"""An entry of a manifest that no file matches, for a file whose content is not known."""
_MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")
"""Matches the name of an object of DVC: a hash, with a suffix for that of a folder."""
_NOT_IN_NAMES = {"", ".", ".."}
"""Parts that a path below a folder does not have."""


def read_regular(path: Path | str, limit: int = MAX_LIST_BYTES) -> bytes:
    """Return the content of the regular file *path*, which may be the target of a link.

    Raises `OSError` as `open_regular` does, and if it has more than *limit* bytes.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
        return file.readall()


def open_regular(path: Path | str) -> FileIO:
    """Open the regular file *path*, which may be the target of a link, to read it.

    Raises `OSError` if it is missing, or is a pipe or a device, which may not end.
    """
    file = FileIO(path, opener=_open_at_once)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def open_text(path: Path, newline: str | None = None) -> TextIOWrapper:
    """Open *path* as `open_regular` does; it is in UTF-8, with or without a byte order mark."""
    return TextIOWrapper(BufferedReader(open_regular(path)), "utf-8-sig", newline=newline)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in *path*; None if the file is missing or has other content."""
    try:
        content = read_json_value(path)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def read_json_value(path: Path) -> Any:
    """Return the value in the JSON file *path*.

    Raises `OSError` as `read_regular` does, and `ValueError` if it is not JSON or is nested too deeply.
    """
    try:
        return json.loads(read_regular(path))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply") from error


def _open_at_once(path: str, flags: int) -> int:
    """Open *path* without waiting for a process that writes to a pipe of this name."""
    return os.open(path, flags | os.O_NONBLOCK)


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
    for path, digest in entries:
        if not is_md5(digest):
            raise StageError(
                f"{source}: the file {path!r} has the hash {str(digest)[:60]!r}, which is not an MD5"
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


@contextmanager
def open_atomic(path: Path) -> Iterator[BinaryIO]:
    """Open a file for the new content of *path*, which replaces the old content if the block succeeds.

    The content is written to a temporary file (see `open_part`), synced, and renamed to *path*; then the
    directory is synced. If the block raises an exception, *path* is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_part(path) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)


@contextmanager
def open_part(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside *path*, which replaces it, without a sync, if the block succeeds.

    Its name is new and cannot be predicted, so that no link of that name is followed. Those of killed
    processes, whose locks have ended with them, are removed.
    """
    remove_stale_parts(path)
    part, handle = _create_part(path)
    try:
        with open(handle, "wb") as file:  # noqa: PTH123  a descriptor
            yield file
            file.flush()
            part.replace(path)  # before the file is closed, which ends its lock
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def new_part(path: Path) -> Path:
    """Return a new name for a temporary file or directory beside *path*."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART_SUFFIX}")


def is_part_of(part: Path, path: Path) -> bool:
    """Return whether *part* has the name of a temporary file of *path*."""
    pattern = rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}{re.escape(PART_SUFFIX)}"
    return part.parent == path.parent and re.fullmatch(pattern, part.name) is not None


def remove_stale_parts(path: Path) -> None:
    """Remove the temporary files and directories of *path* that no process is writing."""
    with suppress(OSError):  # the write itself reports a folder that is missing or cannot be changed
        for name in os.listdir(path.parent):  # noqa: PTH208  no Path for each of many files
            if name.startswith(f".{path.name}.") and is_part_of(path.with_name(name), path):
                _remove_if_stale(path.with_name(name))


def _remove_if_stale(part: Path) -> None:
    """Remove *part* unless a process has locked it; a link, which no process of this project makes, stays."""
    with suppress(OSError), open_to_read(part) as handle:
        if handle is not None and try_shared_lock(handle):
            shutil.rmtree(part) if part.is_dir() else part.unlink()


def _create_part(path: Path) -> tuple[Path, int]:
    """Create a temporary file of *path*, and return its path and a descriptor that holds its lock."""
    while True:
        part = new_part(path)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with suppress(OSError):  # a file system without locks, on which no temporary file is stale
            if not (try_lock(handle) and is_at(handle, part)):  # another process has just removed it
                os.close(handle)
                continue
        return part, handle


def copy_file(source: Path, target: Path) -> None:
    """Copy the file *source*; if the process is killed at any moment, *target* is complete or missing."""
    with source.open("rb") as original, open_atomic(target) as copy:
        shutil.copyfileobj(original, copy, CHUNK_BYTES)


def replace_content(path: Path, content: bytes) -> None:
    """Write *content* atomically to *path*, or to the file that it links to, so that the link stays."""
    with open_atomic(path.resolve()) as file:
        file.write(content)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all it contains, if *path* exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def raise_unless_missing(error: OSError) -> None:
    """Raise *error*, with which `os.walk` cannot list a folder, unless that folder is missing."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def write_text(path: Path, text: str) -> None:
    """Write *text* to *path* atomically, in UTF-8."""
    with open_atomic(path) as file:
        file.write(text.encode())


def sync_directory(path: Path) -> None:
    """Sync the renames and removals in directory *path* to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """Return the SHA-256 of the content of *path* in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def md5(path: Path) -> str | None:
    """Return the MD5 of *path* in hexadecimal, as DVC computes it; None if there is no such file."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def read_modification_time(path: Path) -> float:
    """Return when *path* was last modified, in seconds since the epoch; 0 if it is missing."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def describe(path: Path) -> dict[str, Any]:
    """Return the size and the sha256 of the file *path*, as a manifest holds them."""
    return {"size": path.stat().st_size, "sha256": sha256(path)}


def damage(path: Path, written: Mapping[str, Any]) -> str | None:
    """Return how the file *path* differs from the size and sha256 in *written*; None if it is intact."""
    return difference(describe(path) if path.is_file() else None, written)


def difference(content: Mapping[str, Any] | None, written: Mapping[str, Any]) -> str | None:
    """Return how a file of the size and sha256 in *content* differs from *written*; None if it does not.

    *content* is None for a missing file.
    """
    if content is None:
        return "is missing"
    if written == UNREADABLE:
        return "could not be read when its size and sha256 were recorded"
    if content["size"] != written["size"]:
        return f"has {content['size']} bytes, but {written['size']} were written"
    if content["sha256"] != written["sha256"]:
        return "has changed since it was written (its sha256 differs)"
    return None


FEW_FILES = 32
"""Most files that are synced one by one, so that the data of other programs is not written too."""
SYNCFS_REPORTS = (5, 8)
"""First version of Linux whose syncfs reports failed writes."""


def sync_trees(paths: Iterable[Path]) -> None:
    """Write the files and directories *paths*, and everything below them, to disk.

    More than `FEW_FILES` of them are synced with one call for each file system, if the kernel has one that
    reports failed writes. Raises `OSError` if something cannot be written.
    """
    items = [item for path in paths for item in (path, *path.rglob("*")) if not item.is_symlink()]
    devices = {item.stat().st_dev: item for item in items} if len(items) > FEW_FILES else {}
    if devices and all(map(_sync_file_system, devices.values())):
        return
    for item in reversed(items):
        sync_directory(item)  # or a file


def _sync_file_system(path: Path) -> bool:
    """Sync the file system of *path*; return whether that succeeded, with all failed writes reported."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if sys.platform != "linux" or not version or tuple(map(int, version.groups())) < SYNCFS_REPORTS:
        return False
    handle = os.open(path, os.O_RDONLY)
    try:
        return not ctypes.CDLL(None).syncfs(handle)  # 0 if it has succeeded
    finally:
        os.close(handle)


def save_config(config: "BaseModel", path: Path) -> None:
    """Write *config* to *path* as JSON, atomically, in the form in which Burn's ``Config::save`` writes it.

    Fields are in the order of their declaration, with no line break after the last. A section that is
    selected by its ``kind`` contains it as a key, as in params.yaml.
    """
    write_text(path, to_json(config.model_dump(mode="json", by_alias=True)))
