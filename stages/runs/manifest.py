"""Manifests: the size and the sha256 of files of a run store, with which damage and loss are found.

``finished.json`` holds those of all files of a finished run; ``logs.jsonl`` those of the logs of each
finished epoch, one line for each. Each contains its own checksum.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from stages.contracts.history import Split
from stages.runs.file_names import ENVIRONMENT_FILE, STEP_FOLDER
from stages.runs.layout import FINISHED_FILE, HEARTBEAT_FILE, LOGS_FILE
from stages.system.files import UNREADABLE, damage, describe, is_name_below, read_json, read_regular

Manifest = Mapping[str, Mapping[str, Any]]
"""Size and sha256 of each file, by its path below the store."""

_CHECKSUM = "checksum"
_NOT_LISTED = re.compile(
    rf"{'|'.join(map(re.escape, (FINISHED_FILE, HEARTBEAT_FILE, LOGS_FILE, ENVIRONMENT_FILE)))}|"
    rf"{STEP_FOLDER}/.+|(?:.+/)?\.[^/]+\.part"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finished:
    """The content of ``finished.json``."""

    facts: dict[str, Any]
    """The progress of the run, in plain values."""
    files: Manifest


def add_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return *content* with a checksum."""
    return {**content, _CHECKSUM: _checksum(content)}


def verify_checksum(content: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the content without the checksum of `add_checksum`; None if a value has changed since."""
    rest = {key: value for key, value in (content or {}).items() if key != _CHECKSUM}
    return rest if content and content.get(_CHECKSUM) == _checksum(rest) else None


def read_finished(store_path: Path) -> Finished | None:
    """Return ``finished.json`` of the store *store_path*; None if it is missing or corrupt."""
    content = verify_checksum(read_json(store_path / FINISHED_FILE))
    with suppress(ValueError, TypeError, AttributeError, KeyError):
        return None if content is None else Finished(content, check_manifest(content.pop("files")))
    return None


def describe_store(store_path: Path, recorded: Manifest) -> dict[str, Mapping[str, Any]]:
    """Return the manifest of the store *store_path*: *recorded*, and an entry for each other file."""
    paths = {path.relative_to(store_path).as_posix(): path for path in files_below(store_path)}
    others = {
        name: describe(path)
        for name, path in sorted(paths.items())
        if name not in recorded and not _NOT_LISTED.fullmatch(name)
    }
    return {**others, **recorded}


def find_damage(store_path: Path, manifest: Manifest) -> dict[str, str]:
    """Return the files of *manifest* that are not intact, and what is wrong with each."""
    verdicts = ((name, damage(store_path / name, written)) for name, written in manifest.items())
    return {name: problem for name, problem in verdicts if problem}


class LogLedger:
    """The sizes and hashes of the logs of finished epochs, in ``logs.jsonl`` of a store.

    The file is not synced: after a power failure the last epochs may lack a line, and are then not verified.
    """

    def __init__(self, store_path: Path) -> None:
        self._store_path = store_path
        self._path = store_path / LOGS_FILE

    def read(self, last_epoch: int) -> dict[str, Mapping[str, Any]]:
        """Return the manifest of the logs of the epochs up to *last_epoch*.

        An epoch without an intact line must have the logs that the newest epoch has; those that are missing
        are `UNREADABLE`, and the others are left out. Of the epochs without a line and a folder, only the
        first is checked: the name of a file can state any number of epochs.
        """
        noted = self._read_lines()
        epochs = {*noted, *self._list_folders()}
        epochs.add(next(epoch for epoch in count(1) if epoch not in epochs))
        newest = {path.relative_to(self._store_path) for path in self._logs(last_epoch)}
        manifest: dict[str, Mapping[str, Any]] = {}
        for epoch in sorted(epoch for epoch in epochs if 1 <= epoch <= last_epoch):
            if epoch in noted:
                manifest |= noted[epoch]
                continue
            expected = [Path(name.parts[0], f"epoch-{epoch}", name.name) for name in newest]
            lost = [name.as_posix() for name in expected if not (self._store_path / name).is_file()]
            manifest |= dict.fromkeys(sorted(lost), UNREADABLE)
        return manifest

    def _read_lines(self) -> dict[int, Manifest]:
        """Return epoch to manifest from the intact lines of the file."""
        manifests: dict[int, Manifest] = {}
        with suppress(OSError):
            for line in read_regular(self._path).splitlines():
                with suppress(ValueError, TypeError, AttributeError, KeyError, RecursionError):
                    if content := verify_checksum(json.loads(line)):
                        manifests[int(content["epoch"])] = check_manifest(content["files"])
        return manifests

    def _list_folders(self) -> Iterator[int]:
        """Yield each epoch that has a folder of logs."""
        for folder in (path for split in Split for path in (self._store_path / split).glob("epoch-*")):
            with suppress(ValueError):
                yield int(folder.name.removeprefix("epoch-"))

    def _logs(self, epoch: int) -> list[Path]:
        """Return the paths of the logs of *epoch*."""
        folders = [self._store_path / split / f"epoch-{epoch}" for split in Split]
        return sorted(path for folder in folders for path in folder.glob("*"))

    def describe(self, epoch: int) -> Manifest:
        """Return the manifest of the current logs of *epoch*."""
        paths = self._logs(epoch)
        return {path.relative_to(self._store_path).as_posix(): describe(path) for path in paths}

    def add(self, epoch: int) -> None:
        """Add the current logs of *epoch*; they replace an earlier entry."""
        try:
            content = {"epoch": epoch, "files": self.describe(epoch)}
            line = json.dumps(add_checksum(content), sort_keys=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"\n{line}\n")  # the line before may be incomplete after a kill
        except OSError as error:
            log.warning("the logs of epoch %d will not be verified: %s", epoch, error)


def files_below(store_path: Path) -> list[Path]:
    """Return all files below *store_path*."""
    return [path for path in store_path.rglob("*") if path.is_file()]


def check_manifest(files: Any) -> Manifest:
    """Return *files* if each has a name below the store, a size and a sha256.

    Raises `ValueError`, `TypeError`, `AttributeError` or `KeyError` otherwise.
    """
    for name, written in files.items():
        if not (is_name_below(name) and isinstance(written["size"], int) and "sha256" in written):
            raise ValueError(name)
    return dict(files)


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
