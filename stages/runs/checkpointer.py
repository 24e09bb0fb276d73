"""Checkpoints on disk: write, verify, read and remove them.

The file ``trainer-N`` is written last and removed first, and holds the size and hash of the other files: a
checkpoint exists if and only if this file does. `stages.runs.file_names` names the files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.contracts.errors import CheckpointError, RecordError
from stages.records import (
    NamedMpkGzFileRecorder,
    OriginalPrecision,
    Recorder,
    Tree,
    from_plain,
    read_item,
    to_plain,
)
from stages.records.limits import TRAINER_LIMIT, limit_after_verification
from stages.runs.file_names import (
    BURN_PARTS,
    CHECKPOINT_FOLDER,
    TRAINER,
    files_of,
    list_epochs,
    parse_name,
    parse_partial_name,
    stem_of,
    trainer_name,
)
from stages.runs.manifest import LogLedger
from stages.system.files import UNREADABLE, damage, describe, sync_directory

_trainer_recorder = NamedMpkGzFileRecorder(
    OriginalPrecision,
    compression=0,
    limit=TRAINER_LIMIT,  # the history in it is measured numbers, which hardly compress
)


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run needs to resume after an epoch."""

    model: Tree
    """Burn's record of the model."""
    optim: Tree
    """Burn's record of the optimizer; empty if Burn has no such optimizer."""
    scheduler: Tree
    """Burn's record of the schedule; None if Burn has no such schedule."""
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """The state of the loop, and all state that Burn's records do not restore bit for bit."""


class FileCheckpointer:
    """The checkpoints in one directory, written in the format of *recorder*."""

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        self.directory = directory
        self.recorder = recorder

    def list_saved(self) -> list[int]:
        """Return the epochs that have a checkpoint, in ascending order."""
        return list_epochs(self.directory)

    def save(self, epoch: int, checkpoint: Checkpoint) -> None:
        """Write *checkpoint* as that of *epoch*.

        A previous checkpoint of *epoch* is removed first. If the process is killed before this returns,
        *epoch* has no checkpoint.
        """
        self._remove_trainer(epoch)
        files: dict[str, Any] = {}
        for part in BURN_PARTS:
            item = vars(checkpoint)[part]
            path = self.recorder.record(item, self.directory / stem_of(part, epoch))
            files[path.name] = describe(path)
            if not self.recorder.has_names:
                files[path.name]["example"] = to_plain(item)
        _trainer_recorder.record(
            {**checkpoint.trainer, "files": files}, self.directory / stem_of(TRAINER, epoch)
        )

    def restore(self, epoch: int) -> Checkpoint:
        """Return the checkpoint of *epoch*, which is verified before it is decoded.

        Raises `CheckpointError` if it does not exist, or if a file is missing, corrupt or was changed.
        """
        if epoch not in self.list_saved():
            saved = ", ".join(map(str, self.list_saved())) or "none"
            raise CheckpointError(
                f"{self.directory} has no checkpoint of epoch {epoch}; found: {saved}. Choose another epoch"
            )
        try:
            trainer = _trainer_recorder.load(self.directory / stem_of(TRAINER, epoch))
            self._verify(trainer["files"])
            parts = {part: self._load(part, trainer["files"]) for part in BURN_PARTS}
        except (RecordError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint of epoch {epoch} is not intact: {error}") from error
        return Checkpoint(**parts, trainer=trainer)

    def delete(self, epoch: int) -> None:
        """Remove the checkpoint of *epoch*, its trainer record first."""
        self._remove_trainer(epoch)
        for path in files_of(self.directory, epoch):
            path.unlink()

    def remove_partial_files(self) -> None:
        """Remove the files of incomplete checkpoints, which a killed process did not finish."""
        intact = set(self.list_saved())
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
        """Read a verified file with the recorder, or in the format of its suffix if that differs."""
        [name] = [name for name in files if (parsed := parse_name(name)) and parsed.part == part]
        example = from_plain(files[name]["example"], name) if files[name].get("example") else ()
        read = self.recorder.load if name.endswith(self.recorder.suffix) else read_item
        return read(self.directory / name, example, limit=limit_after_verification(files[name]["size"]))

    def _verify(self, files: Mapping[str, Mapping[str, Any]]) -> None:
        for name, written in files.items():
            path = self.directory / Path(name).name
            if problem := damage(path, written):
                raise RecordError(f"{path} {problem}")


def read_manifest(directory: Path, epoch: int) -> dict[str, dict[str, Any]]:
    """Return the size and sha256 of each file of *epoch* in *directory*, as its trainer record lists them.

    Raises `CheckpointError` if that record cannot be read.
    """
    try:
        listed = _trainer_recorder.load(directory / stem_of(TRAINER, epoch))["files"]
        return {name: {"size": file["size"], "sha256": file["sha256"]} for name, file in listed.items()}
    except (RecordError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint of epoch {epoch} is not intact: {error}") from error


def results_manifest(store_path: Path, last_epoch: int, retained: Iterable[int]) -> dict[str, Any]:
    """Return the sizes and hashes recorded when logs and checkpoints were written, by path below the store.

    *retained* are the epochs that must have a checkpoint. One whose trainer record cannot be read gets an
    entry that no file matches.
    """
    manifest = dict(LogLedger(store_path).read(last_epoch))
    directory = store_path / CHECKPOINT_FOLDER
    for epoch in {*list_epochs(directory), *retained}:
        try:
            files = read_manifest(directory, epoch)
        except CheckpointError:
            files = {trainer_name(epoch): UNREADABLE}
        manifest |= {f"{CHECKPOINT_FOLDER}/{name}": file for name, file in files.items()}
    return manifest
