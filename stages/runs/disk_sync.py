"""Synchronization of many files to disk with one system call."""

import ctypes
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from stages.system.files import sync_directory

FEW_FILES = 32
"""Most files that are synced one by one, so that the data of other programs is not written too."""
SYNCFS_REPORTS = (5, 8)
"""First version of Linux whose syncfs reports failed writes."""


def sync_trees(paths: Iterable[Path]) -> None:
    """Write the files and directories *paths*, and everything below them, to disk.

    More than `FEW_FILES` of them are synced with one call for each file system, if the kernel has one that
    reports failed writes. Raises `OSError` if something cannot be written.
    """
    found = [each for path in paths for each in (path, *path.rglob("*")) if not each.is_symlink()]
    devices = {each.stat().st_dev: each for each in found} if len(found) > FEW_FILES else {}
    if devices and all(map(_sync_file_system, devices.values())):
        return
    for each in reversed(found):
        sync_directory(each)  # or a file


def _sync_file_system(path: Path) -> bool:
    """Sync the file system of *path*; return whether that succeeded, with all failed writes reported."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if sys.platform != "linux" or not version or tuple(map(int, version.groups())) < SYNCFS_REPORTS:
        return False
    syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
    handle = os.open(path, os.O_RDONLY)
    try:
        return syncfs is not None and syncfs(handle) == 0
    finally:
        os.close(handle)
