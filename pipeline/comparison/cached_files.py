"""DVC's cache as a comparison reads it: each file is verified once, however many runs have it."""

import hashlib
import json
import os
from pathlib import Path

from pipeline.engine.cache_content import DIRECTORY_SUFFIX
from stages.contracts.errors import StageError

VERIFIED_BYTES = 1 << 20
"""Size up to which a cached file that is not shown is read too. `learner doctor --deep` reads all of them."""


class CachedFiles:
    """The local cache in *root*, by the hashes of its objects."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._states: dict[str, bool | None] = {}
        """Hash to whether the content has that hash; None if the object is missing."""
        self._listed: dict[str, dict[str, str]] = {}

    def place(self, md5: str) -> Path:
        """Return the path of an object."""
        return self._root / md5[:2] / md5[2:]

    def read(self, md5: str) -> bytes | None:
        """Return the content of an object; None if it is missing, or damaged."""
        if self._states.get(md5, True) is not True:
            return None
        place = f"{self._root}/{md5[:2]}/{md5[2:]}"
        try:
            with open(place, "rb", buffering=0) as file:  # noqa: PTH123  in half the time of Path.read_bytes
                content: bytes = file.readall()
        except FileNotFoundError:
            self._states[md5] = None
            return None
        except OSError as error:
            raise StageError(f"{place}: cannot be read: {error.strerror}. Make it readable") from error
        if md5 not in self._states:
            digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
            self._states[md5] = digest == md5.removesuffix(DIRECTORY_SUFFIX)
        return content if self._states[md5] else None

    def files_of(self, md5: str) -> dict[str, str]:
        """Return path to hash of each file in a directory; empty if its list is missing or damaged."""
        if md5 not in self._listed:
            content = self.read(md5)
            listed = json.loads(content) if content is not None else []
            self._listed[md5] = {each["relpath"]: each["md5"] for each in listed}
        return self._listed[md5]

    def is_damaged(self, md5: str) -> bool:
        """Return whether the object was read and does not have that hash."""
        return self._states.get(md5) is False

    def is_intact(self, md5: str) -> bool:
        """Return whether the object is there and, up to `VERIFIED_BYTES`, has that hash."""
        if md5 not in self._states:
            try:
                size = os.stat(f"{self._root}/{md5[:2]}/{md5[2:]}").st_size  # noqa: PTH116  as above
            except FileNotFoundError:
                self._states[md5] = None
                return False
            if size > VERIFIED_BYTES:
                return True
            self.read(md5)
        return self._states[md5] is True
