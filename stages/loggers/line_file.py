"""A text file with buffered lines, without a timer or a thread, and its truncation when a run is resumed."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from stages.contracts.errors import CheckpointError, StageError
from stages.system.file_lock import is_at
from stages.system.files import is_name_below


class LineFile:
    """A text file that is written about once per *flush_seconds*, in the calling thread.

    Buffered lines are written by the first `write` after that time, or by `flush`. If the disk is full, the
    bytes that do not fit stay in the buffer and are written once there is space.
    """

    def __init__(self, path: Path, mode: Literal["a", "w"], flush_seconds: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("ab" if mode == "a" else "wb", buffering=0)
        self._lines: list[str] = []
        self._bytes = bytearray()
        self._synced = False
        self._seconds = flush_seconds
        self._due = monotonic() + flush_seconds

    def write(self, line: str) -> None:
        """Add *line*, which must end in a line break."""
        self._lines.append(line)
        if monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Pass all buffered lines to the operating system."""
        lines, self._lines = self._lines, []
        self._bytes += "".join(lines).encode("utf-8", "backslashreplace")
        while self._bytes:
            self._synced = False
            del self._bytes[: self._file.write(self._bytes)]
        self._due = monotonic() + self._seconds

    def sync(self) -> int:
        """Sync all lines to disk and return the size of the file in bytes."""
        self.flush()
        if not self._synced:
            os.fsync(self._file.fileno())
            self._synced = True
        return os.fstat(self._file.fileno()).st_size

    def is_removed(self) -> bool:
        """Return whether the file is no longer at its path."""
        return not is_at(self._file.fileno(), self.path)

    def discard_buffer(self) -> None:
        """Discard the buffered lines; for a forked process, whose parent writes them."""
        self._lines = []
        self._bytes.clear()

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()


_CHUNK_BYTES = 1 << 20


def truncate_files(directory: Path, position: Mapping[str, Any]) -> dict[str, int]:
    """Truncate each file of *position* to its recorded size and return the size in bytes by name.

    Names are paths relative to *directory*. Raises the errors of `verify_files` before any file is changed.
    """
    sizes = verify_files(directory, position)
    for name, size in sizes.items():
        _truncate(directory / name, size)
    return sizes


def verify_files(directory: Path, position: Mapping[str, Any]) -> dict[str, int]:
    """Return the recorded size in bytes by name, after verifying that each file begins with its content.

    The position has SHA-256 hashes if its logger records them; otherwise only sizes are verified. Raises
    `CheckpointError` if a file is missing, too short or changed, and if *position* is invalid.
    """
    sizes: dict[str, int] = read_entry(position, "files", dict)
    hashes = position.get("sha256") or {}
    for name, size in sizes.items():
        _verify_size(directory, name, size)
        if name in hashes and hashes[name] != _digest(directory / name, size):
            raise CheckpointError(
                f"the first {size} bytes of {directory / name} changed after the checkpoint was written: "
                "resume from an earlier checkpoint"
            )
    return dict(sizes)


def hash_files(directory: Path, sizes: Mapping[str, int]) -> dict[str, str]:
    """Return by name the SHA-256 of the first bytes of each file below *directory*, as many as in *sizes*.

    Raises `StageError` if a file was removed.
    """
    try:
        return {name: _digest(directory / name, size) for name, size in sizes.items()}
    except FileNotFoundError as error:
        raise build_removal_error(error.filename) from error


def build_removal_error(path: Path | str) -> StageError:
    """Return the error for a log that was removed while it was open."""
    return StageError(
        f"{path} was removed or replaced while the run was writing it. Nothing was recorded. Run the same "
        "command again to resume from the last checkpoint before that"
    )


def read_entry(position: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return the entry *name* of *position*. Raises `CheckpointError` if it is not of type *kind*."""
    entry = position.get(name)
    if type(entry) is not kind:
        raise CheckpointError(
            f"the position of a logger must have an entry {name!r} of type {kind.__name__}; found "
            f"{dict(position)!r}. The checkpoint was written with another logger: resume with the logger of "
            "that run"
        )
    return entry


def _verify_size(directory: Path, name: str, size: Any) -> None:
    if not is_name_below(name) or "\\" in name:
        raise CheckpointError(
            f"the checkpoint has a log file {name!r}, which is not below {directory}: resume from an earlier "
            "checkpoint"
        )
    path = directory / name
    if type(size) is not int or size < 0:
        raise CheckpointError(
            f"the checkpoint must have the size of {path} in bytes; found {size!r}. Resume from an earlier "
            "checkpoint"
        )
    found_size = path.stat().st_size if path.is_file() else None
    if found_size is None or found_size < size:
        problem = "is missing" if found_size is None else f"has {found_size} bytes"
        raise CheckpointError(
            f"{path} {problem}, but had {size} bytes when the checkpoint was written: restore it, or resume "
            "from an earlier checkpoint"
        )


def _digest(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (chunk := file.read(min(size, _CHUNK_BYTES))):
            digest.update(chunk)
            size -= len(chunk)
    return digest.hexdigest()


def _truncate(path: Path, size: int) -> None:
    try:
        with path.open("r+b") as file:
            if path.stat().st_size != size:
                file.truncate(size)
                os.fsync(file.fileno())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be truncated to {size} bytes: {error.strerror}") from error
