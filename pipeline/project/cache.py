"""The place of DVC's cache in the settings of the project.

They are read without DVC, which takes long to import, but with its parser. The settings of the user and of
the machine do not count.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configobj import ConfigObj, ConfigObjError

from stages.system.files import read_regular

OBJECTS = Path("files/md5")


def find_cache(dvc_folder: Path) -> Path | None:
    """Return the cache that the settings in *dvc_folder* name; None if they cannot be read."""
    settings = _read_settings(dvc_folder)
    try:
        return None if settings is None else dvc_folder / Path(settings.get("dir", "cache")).expanduser()
    except (TypeError, RuntimeError):  # a list, which DVC refuses, or no home folder
        return None


def local_objects(dvc_folder: Path) -> Path | None:
    """Return the directory of cached files of `find_cache`; None if it is missing or other users share it."""
    settings, cache = _read_settings(dvc_folder), find_cache(dvc_folder)
    if settings is None or cache is None or "shared" in settings:
        return None
    return cache / OBJECTS if (cache / OBJECTS).is_dir() else None


def _read_settings(dvc_folder: Path) -> Mapping[str, Any] | None:
    """Return the section ``cache`` of the two files in *dvc_folder*; None if one cannot be read."""
    settings: dict[str, Any] = {}
    for path in (dvc_folder / "config", dvc_folder / "config.local"):
        try:
            if path.exists():
                settings |= ConfigObj(io.StringIO(read_regular(path).decode())).dict().get("cache", {})
        except (OSError, ConfigObjError, TypeError, ValueError):  # no text, or a value in place of a section
            return None
    return settings
