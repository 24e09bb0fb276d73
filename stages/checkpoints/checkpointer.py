"""Checkpoints on disk: for epoch N the files ``model-N``, ``optim-N``, ``scheduler-N`` and ``trainer-N``.

``trainer-N`` is written last, removed first, and holds the size and hash of the other three: a checkpoint
exists when, and only when, that file does.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.contracts.errors import CheckpointError, RecordError
from stages.contracts.files import sha256, sync_directory
from stages.records import FullPrecision, NamedMpkGzFileRecorder, Recorder, Tree

PARTS = ("model", "optim", "scheduler")
_trainer_recorder = NamedMpkGzFileRecorder(FullPrecision)


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on after an epoch."""

    model: Tree
    optim: Tree
    scheduler: Tree
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """The loop's own state."""


class FileCheckpointer:
    """Writes, reads and removes the checkpoints in one directory."""

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        self.directory = directory
        self.recorder = recorder

    def saved(self) -> list[int]:
        """The epochs that have a checkpoint, ascending."""
        pattern = re.compile(rf"trainer-(\d+){re.escape(_trainer_recorder.suffix)}")
        if not self.directory.is_dir():
            return []
        found = (pattern.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def save(self, epoch: int, checkpoint: Checkpoint) -> None:
        """Write *checkpoint* as that of *epoch*; it exists once this returns, and not before.

        One that *epoch* has already ceases to exist when this begins.
        """
        self._remove_trainer(epoch)
        files = {}
        for part in PARTS:
            path = self.recorder.record(getattr(checkpoint, part), self.directory / f"{part}-{epoch}")
            files[path.name] = {"size": path.stat().st_size, "sha256": sha256(path)}
        _trainer_recorder.record({**checkpoint.trainer, "files": files}, self.directory / f"trainer-{epoch}")

    def restore(self, epoch: int) -> Checkpoint:
        """The checkpoint of *epoch*, verified before it is decoded.

        Raises `CheckpointError` where there is none or where a file is not as it was written.
        """
        if epoch not in self.saved():
            there = ", ".join(map(str, self.saved())) or "none"
            raise CheckpointError(f"{self.directory} has no checkpoint of epoch {epoch}; there: {there}")
        try:
            trainer = _trainer_recorder.load(self.directory / f"trainer-{epoch}")
            self._verify(trainer["files"])
            parts = {part: self.recorder.load(self.directory / f"{part}-{epoch}") for part in PARTS}
        except (RecordError, KeyError, TypeError) as error:
            raise CheckpointError(f"the checkpoint of epoch {epoch} is not whole: {error}") from error
        return Checkpoint(**parts, trainer=trainer)

    def delete(self, epoch: int) -> None:
        """Remove the checkpoint of *epoch*: first the file that makes it one."""
        self._remove_trainer(epoch)
        for part in PARTS:
            (self.directory / f"{part}-{epoch}{self.recorder.suffix}").unlink(missing_ok=True)

    def _remove_trainer(self, epoch: int) -> None:
        path = self.directory / f"trainer-{epoch}{_trainer_recorder.suffix}"
        if path.exists():
            path.unlink()
            sync_directory(self.directory)

    def _verify(self, files: Mapping[str, Mapping[str, Any]]) -> None:
        for name, written in files.items():
            path = self.directory / Path(name).name
            if not path.is_file():
                raise RecordError(f"{path} is missing")
            if path.stat().st_size != written["size"] or sha256(path) != written["sha256"]:
                raise RecordError(f"{path} is not as it was written (size or sha256 differ)")
