"""Checkpoints on disk: write, verify, read and remove them.

The file ``trainer-N`` is written last and removed first, and holds the size and hash of the other files: a
checkpoint exists if and only if this file does. `stages.runs.file_names` names the files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from stages.contracts.errors import CheckpointError, RecordError
from stages.records import (
    NamedMpkGzFileRecorder,
    OriginalPrecision,
    Recorder,
    Tree,
    formats,
    from_plain,
    read_item,
    to_021,
    to_plain,
)
from stages.records.dotted_names import has_derived_ids
from stages.records.limits import TRAINER_LIMIT, limit_after_verification
from stages.runs.file_names import (
    BURN_PARTS,
    CHECKPOINT_FOLDER,
    TRAINER,
    files_of,
    list_epochs,
    list_unmarked_epochs,
    marker_name,
    parse_name,
    parse_partial_name,
    stem_of,
    trainer_name,
)
from stages.runs.manifest import LogLedger
from stages.system.files import UNREADABLE, damage, describe, open_atomic, sync_directory

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
    optim: Tree = field(default_factory=dict)
    """Burn's record of the optimizer; empty if Burn has no such optimizer."""
    scheduler: Tree = None
    """Burn's record of the schedule; None if Burn has no such schedule."""
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """The state of the loop, and all state that Burn's records do not restore bit for bit."""


@dataclass(eq=False)
class FileCheckpointer:
    """The checkpoints in one directory, written in the format of *recorder*."""

    directory: Path
    recorder: Recorder

    def list_saved(self) -> list[int]:
        """Return the epochs that have a checkpoint, in ascending order."""
        return list_epochs(self.directory)

    def list_burn_epochs(self) -> list[int]:
        """Return the epochs, in ascending order, of which Burn wrote a model into the directory."""
        return [epoch for epoch in list_unmarked_epochs(self.directory) if self._has_our_ids(epoch) is False]

    def _has_our_ids(self, epoch: int) -> bool | None:
        """Return whether this project wrote the model of *epoch*; None if it has no ids or cannot be read."""
        try:
            [path] = files_of(self.directory, epoch, part=BURN_PARTS[0])
            record = formats.read(path, keep_data=False)
        except (RecordError, ValueError):
            return None
        return has_derived_ids(record.item)

    def save(self, epoch: int, checkpoint: Checkpoint) -> None:
        """Write *checkpoint* as that of *epoch*.

        A previous checkpoint of *epoch* is removed first. If the process is killed before this returns,
        *epoch* has no checkpoint.
        """
        self._mark(epoch)
        files: dict[str, Any] = {}
        for part in BURN_PARTS:
            item = vars(checkpoint)[part]
            path = self.recorder.record(item, self.directory / stem_of(part, epoch))
            files[path.name] = describe(path)
            if not self.recorder.has_names:
                files[path.name]["example"] = to_plain(to_021(item))
        _trainer_recorder.record(
            {**checkpoint.trainer, "files": files}, self.directory / stem_of(TRAINER, epoch)
        )
        (self.directory / marker_name(epoch)).unlink(missing_ok=True)

    def restore(self, epoch: int, parts: Sequence[str] = BURN_PARTS) -> Checkpoint:
        """Return the checkpoint of *epoch*, of which only *parts* and the trainer record are read.

        A file is verified before it is decoded. Raises `CheckpointError` if the checkpoint does not exist, or
        if one of these files is missing, corrupt or was changed.
        """
        if epoch not in self.list_saved():
            epochs = sorted({*self.list_saved(), *self.list_burn_epochs()})
            saved = ", ".join(map(str, epochs)) or "none"
            raise CheckpointError(
                f"{self.directory} has no checkpoint of epoch {epoch}; found: {saved}. Choose another epoch"
            )
        try:
            trainer = _trainer_recorder.load(self.directory / stem_of(TRAINER, epoch))
            names = {parsed.part: name for name in trainer["files"] if (parsed := parse_name(name))}
            items = {part: self._load(names[part], trainer["files"][names[part]]) for part in parts}
        except (RecordError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint of epoch {epoch} is not intact: {error}") from error
        return Checkpoint(**{"model": {}, **items}, trainer=trainer)

    def delete(self, epoch: int) -> None:
        """Remove the checkpoint of *epoch*, its trainer record first."""
        self._mark(epoch)
        for path in [*files_of(self.directory, epoch), self.directory / marker_name(epoch)]:
            path.unlink()

    def remove_partial_files(self) -> None:
        """Remove the files of checkpoints that a killed process did not finish, or that lost their trainer.

        Files of Burn, which has no trainer record, remain.
        """
        intact = set(self.list_saved())
        lost = {epoch for epoch in list_unmarked_epochs(self.directory) if self._has_our_ids(epoch)}
        paths = self.directory.glob(".*")
        partial = {path: parsed for path in paths if (parsed := parse_partial_name(path.name))}
        marked = {parsed.epoch for path, parsed in partial.items() if path.name == marker_name(parsed.epoch)}
        for epoch in (marked | lost) - intact:
            for path in files_of(self.directory, epoch):
                path.unlink()
        for path in partial:  # the markers last
            path.unlink()

    def _mark(self, epoch: int) -> None:
        """Remove the trainer record of *epoch*, if any, and mark its files as those of this project."""
        self.directory.mkdir(parents=True, exist_ok=True)
        trainer, marker = self.directory / trainer_name(epoch), self.directory / marker_name(epoch)
        if trainer.exists():
            trainer.replace(marker)
        else:
            marker.touch()
        sync_directory(self.directory)

    def _load(self, name: str, written: Mapping[str, Any]) -> Tree:
        """Verify a file, and read it with the recorder, or in the format of its suffix if that differs."""
        path = self.directory / Path(name).name
        if problem := damage(path, written):
            raise RecordError(f"{path} {problem}")
        example = from_plain(written["example"], name) if written.get("example") else ()
        read = self.recorder.load if name.endswith(self.recorder.suffix) else read_item
        return read(path, example, limit=limit_after_verification(written["size"]))


class CheckpointStorage(Protocol):
    """A place for the files of checkpoints, such as a bucket: named bytes. Burn's custom checkpointers."""

    def names(self) -> Iterable[str]:
        """Return the names of all files."""

    def read(self, name: str) -> bytes:
        """Return the content of the file *name*."""

    def write(self, name: str, content: bytes) -> None:
        """Store *content* as the file *name*, in place of an earlier one."""

    def remove(self, name: str) -> None:
        """Remove the file *name*."""


class StoredCheckpointer(FileCheckpointer):
    """The checkpoints in one directory, with a copy of their files in *storage*.

    Files that the directory lacks are read from *storage* first. A trainer record is written last and removed
    first there too.
    """

    def __init__(self, directory: Path, recorder: Recorder, storage: CheckpointStorage) -> None:
        super().__init__(directory, recorder)
        self._storage = storage
        directory.mkdir(parents=True, exist_ok=True)
        for name in sorted(storage.names()):  # the trainer records last
            if parse_name(name) and not (directory / name).exists():
                with open_atomic(directory / name) as file:
                    file.write(storage.read(name))

    def save(self, epoch: int, checkpoint: Checkpoint) -> None:
        """Write *checkpoint* as that of *epoch*, to the directory and then to the storage."""
        self._remove(epoch)
        super().save(epoch, checkpoint)
        for path in files_of(self.directory, epoch):
            self._storage.write(path.name, path.read_bytes())

    def delete(self, epoch: int) -> None:
        """Remove the checkpoint of *epoch*, its trainer record first."""
        self._remove(epoch)
        super().delete(epoch)

    def _remove(self, epoch: int) -> None:
        for name in sorted(self._storage.names(), reverse=True):
            if (file := parse_name(name)) and file.epoch == epoch:
                self._storage.remove(name)


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
