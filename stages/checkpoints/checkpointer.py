"""Checkpoints on disk: for epoch N the files ``model-N``, ``optim-N``, ``scheduler-N`` and ``trainer-N``.

``trainer-N`` is written last, removed first, and holds the size and hash of the other three: a checkpoint
exists when, and only when, that file does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.checkpoints.file_names import (
    BURN_PARTS,
    TRAINER,
    files_of,
    parse_name,
    parse_partial_name,
    saved_epochs,
    stem_of,
    trainer_name,
)
from stages.contracts.errors import CheckpointError, RecordError
from stages.contracts.files import sha256, sync_directory
from stages.records import (
    NamedMpkGzFileRecorder,
    OriginalPrecision,
    Recorder,
    Tree,
    from_plain,
    read_item,
    to_plain,
)
from stages.records.limits import TRAINER_LIMIT, verified_limit

_trainer_recorder = NamedMpkGzFileRecorder(
    OriginalPrecision,
    compression=0,
    limit=TRAINER_LIMIT,  # the history in it is measured numbers, which hardly compress
)


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on after an epoch."""

    model: Tree
    """Burn's record of the model."""
    optim: Tree
    """Burn's record of the optimizer; empty where Burn has none like it."""
    scheduler: Tree
    """Burn's record of the schedule; None where Burn has none like it."""
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """What only we need: the loop's own state, and what the other three do not bring back bit for bit."""


class FileCheckpointer:
    """Writes, reads and removes the checkpoints in one directory."""

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        self.directory = directory
        self.recorder = recorder

    def saved(self) -> list[int]:
        """The epochs that have a checkpoint, ascending."""
        return saved_epochs(self.directory)

    def save(self, epoch: int, checkpoint: Checkpoint) -> None:
        """Write *checkpoint* as that of *epoch*; it exists once this returns, and not before.

        One that *epoch* has already ceases to exist when this begins.
        """
        self._remove_trainer(epoch)
        files: dict[str, Any] = {}
        for part in BURN_PARTS:
            item = getattr(checkpoint, part)
            path = self.recorder.record(item, self.directory / stem_of(part, epoch))
            files[path.name] = {"size": path.stat().st_size, "sha256": sha256(path)}
            if not self.recorder.has_names:
                files[path.name]["example"] = to_plain(item)
        _trainer_recorder.record(
            {**checkpoint.trainer, "files": files}, self.directory / stem_of(TRAINER, epoch)
        )

    def restore(self, epoch: int) -> Checkpoint:
        """The checkpoint of *epoch*, verified before it is decoded.

        Raises `CheckpointError` where there is none or where a file is not as it was written.
        """
        if epoch not in self.saved():
            there = ", ".join(map(str, self.saved())) or "none"
            raise CheckpointError(f"{self.directory} has no checkpoint of epoch {epoch}; there: {there}")
        try:
            trainer = _trainer_recorder.load(self.directory / stem_of(TRAINER, epoch))
            self._verify(trainer["files"])
            parts = {part: self._load(part, trainer["files"]) for part in BURN_PARTS}
        except (RecordError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint of epoch {epoch} is not whole: {error}") from error
        return Checkpoint(**parts, trainer=trainer)

    def delete(self, epoch: int) -> None:
        """Remove the checkpoint of *epoch*: first the file that makes it one."""
        self._remove_trainer(epoch)
        for path in files_of(self.directory, epoch):
            path.unlink()

    def sweep(self) -> None:
        """Remove what a kill left: files of no checkpoint, and those that were being written."""
        intact = set(self.saved())
        for path in self.directory.iterdir() if self.directory.is_dir() else ():
            parsed = parse_name(path.name)
            if parse_partial_name(path.name) or (parsed and parsed.epoch not in intact):
                path.unlink()

    def _remove_trainer(self, epoch: int) -> None:
        path = self.directory / trainer_name(epoch)
        if path.exists():
            path.unlink()
            sync_directory(self.directory)

    def _load(self, part: str, files: Mapping[str, Mapping[str, Any]]) -> Tree:
        """Read a verified file with the recorder, or in the format of its suffix if another one wrote it."""
        [name] = [name for name in files if (parsed := parse_name(name)) and parsed.part == part]
        example = from_plain(files[name].get("example"), name)
        read = self.recorder.load if name.endswith(self.recorder.suffix) else read_item
        return read(self.directory / name, example, limit=verified_limit(files[name]["size"]))

    def _verify(self, files: Mapping[str, Mapping[str, Any]]) -> None:
        for name, written in files.items():
            path = self.directory / Path(name).name
            if not path.is_file():
                raise RecordError(f"{path} is missing")
            if path.stat().st_size != written["size"] or sha256(path) != written["sha256"]:
                raise RecordError(f"{path} is not as it was written (size or sha256 differ)")


def read_manifest(directory: Path, epoch: int) -> dict[str, dict[str, Any]]:
    """Return the size and sha256 of each file of *epoch* in *directory*, as its trainer record lists them.

    Raises `CheckpointError` if that record cannot be read.
    """
    try:
        listed = _trainer_recorder.load(directory / stem_of(TRAINER, epoch))["files"]
        return {name: {"size": file["size"], "sha256": file["sha256"]} for name, file in listed.items()}
    except (RecordError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint of epoch {epoch} is not intact: {error}") from error
