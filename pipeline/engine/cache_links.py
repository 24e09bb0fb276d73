"""Checkpoints that the run store and DVC's cache share, as hard links to one read-only file.

Before DVC commits the outputs of ``fit``, the checkpoints in the run store are linked into the cache under
their md5. DVC finds them there and makes no copy. The state of each place is then:

* The store and the cache share an inode. No user edits files in either, and this project does not write to a
  finished checkpoint in place: the checkpointer writes a temporary file and renames it, and removal unlinks.
  As DVC does with every cached file, the inode is made read-only. `dvc gc`, `learner runs prune` and a new
  checkpoint remove one name and leave the other.
* The output in ``artifacts`` is a separate file, or a clone, which users may edit. If ``cache.type`` starts
  with ``hardlink``, DVC replaces it with a third name of the same inode.

A fault of the disk in a shared file damages both. The store verifies hashes when it reads, and then trains
from an earlier checkpoint; `learner run` and `learner doctor --deep` verify the cache. A new checkpoint
replaces a damaged object. If the store and the cache are on different file systems, or if the cache is shared
with other users, no file is linked and DVC copies as usual.
"""

import configparser
import hashlib
import os
from contextlib import suppress
from pathlib import Path

from stages.system.files import new_part, remove_stale_parts

READ_ONLY = 0o444
"""The mode of every file in DVC's cache."""
OBJECTS = Path("files/md5")


def local_objects(dvc_folder: Path) -> Path | None:
    """Return the directory of cached files that the settings in *dvc_folder* name; None if it is missing.

    None also if the cache is shared with other users. The settings are read without DVC, which takes long
    to import, so those of the user and of the machine do not count.
    """
    settings = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        settings.read([dvc_folder / "config", dvc_folder / "config.local"], encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return None
    objects = dvc_folder / settings.get("cache", "dir", fallback="cache") / OBJECTS
    return objects if objects.is_dir() and not settings.has_option("cache", "shared") else None


def link_into_cache(checkpoints: Path, objects: Path) -> None:
    """Make each file in *checkpoints* the cached file with its md5 in *objects*, if a hard link can be made.

    Killed at any moment, it leaves complete files, and can be called again.
    """
    with suppress(OSError):  # another file system, no hard links, no permission: DVC copies
        for file in sorted(checkpoints.glob("[!.]*")):
            if not file.is_symlink():
                _link(file, checkpoints.parent / file.name, objects)


def _link(file: Path, beside: Path, objects: Path) -> None:
    """Link *file* by way of a temporary name for *beside*, which is not in a directory that is published."""
    remove_stale_parts(beside)
    part = new_part(beside)
    os.link(file, part)  # from here on, a replacement of *file* has no effect
    try:
        part.chmod(READ_ONLY)
        with part.open("rb") as content:
            md5 = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        place = objects / md5[:2] / md5[2:]
        place.parent.mkdir(exist_ok=True)
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)  # it is still there if *place* was the same file
