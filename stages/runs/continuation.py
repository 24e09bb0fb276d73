"""The point at which a run store continues: a finished run, the newest checkpoint, or the initial learner."""

import logging
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.contracts.printing import print_line
from stages.runs.file_names import (
    CHECKPOINT_FOLDER,
    STEP_FOLDER,
    TRAINER,
    list_epochs,
    parse_name,
)
from stages.runs.manifest import LogLedger, files_below, find_damage
from stages.runs.store import RunStore
from stages.system.files import copy_file, md5, sync_directory

_LOG = re.compile(r"(?:train|valid)/epoch-(\d+)/.+")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Continuation:
    """Prepares a run store for training, and returns it to an intact epoch if its files are damaged."""

    store: RunStore
    initial: Path
    """The directory of the initial learner: the records of epoch 0, or of that at which a run is resumed."""
    marker: str
    """The name of the file there that is written last."""

    def prepare(self, num_epochs: int, recorded: str | None, devices: Sequence[str] = ()) -> None:
        """Choose the state to continue: a finished run, its newest checkpoint, or the initial learner.

        * A finished run of fewer than *num_epochs* epochs is trained further.
        * A finished run of *num_epochs* epochs stays finished. If the md5 of its metrics.json is *recorded*,
          dvc.lock already records this run, so the user has forced it: it starts over.
        * A run of more epochs, or one whose checkpoints are all of later epochs, starts over.
        * Any other run resumes at its newest checkpoint.

        A finished run of other *devices* than these is published too, and a line reports it.
        """
        store = self.store
        done = store.finished
        if done and done["num_epochs"] < num_epochs:
            if problems := find_damage(store.path, store.manifest):
                self.repair(problems)
            store.reopen()
        elif done and done["num_epochs"] == num_epochs and md5(store.path / "metrics.json") != recorded:
            print_line(f"run {store.key} is already finished: publishing its results")
            if list(done["devices"]) != list(devices):
                print_line(
                    f"it was trained on {', '.join(done['devices'])}: a training on {', '.join(devices)} "
                    f"would differ in the last digits. To train again, remove {store.path}"
                )
            return
        elif done or min(self._list_saved(), default=0) > num_epochs:
            store.restart()
        else:
            self._check_logs()
        if self._list_saved() and (store.path / self.marker).exists():
            copy_file(self.initial / self.marker, store.path / self.marker)
        else:
            self._start_over()

    def repair(self, problems: Mapping[str, str]) -> None:
        """Return to the newest checkpoint before all damaged files, so that they are trained again.

        *problems* has what is wrong with each damaged file, by its path below the store.
        """
        store = self.store
        store.check_exists()
        for name, problem in sorted(problems.items()):
            log.warning("%s %s", store.path / name, problem)
        first = first_epoch(problems)
        before = [epoch for epoch in self._list_saved() if first is None or epoch < first]
        if before and (store.path / self.marker).exists():
            remove_epochs_after(store.path, before[-1])
            store.reopen()
        else:
            self._start_over()
        start = f"after epoch {before[-1]}" if before else "from the start"
        print_line(f"run {store.key} has {len(problems)} damaged files: it is trained again {start}")

    def _check_logs(self) -> None:
        """Repair an unfinished run if logs of its finished epochs are damaged."""
        path = self.store.path
        if self.store.discard_corrupt_finish():
            log.warning("removed the corrupt finished.json of %s: it is written again", path)
        if problems := find_damage(path, LogLedger(path).read(max(self._list_saved(), default=0))):
            self.repair(problems)

    def _start_over(self) -> None:
        """Empty the store and copy the initial learner to it, its marker last."""
        self.store.restart()
        files = sorted(files_below(self.initial), key=lambda path: (path.name == self.marker, path))
        for path in files:
            copy_file(path, self.store.path / path.relative_to(self.initial))
        for epoch in range(1, max(self._list_saved(), default=0) + 1):
            LogLedger(self.store.path).add(epoch)

    def _list_saved(self) -> list[int]:
        return list_epochs(self.store.path / CHECKPOINT_FOLDER)


def first_epoch(names: Iterable[str]) -> int | None:
    """Return the first epoch that has a file among *names*; None if all of them belong to no epoch."""
    return min((epoch for epoch in map(_epoch_of, names) if epoch is not None), default=None)


def remove_epochs_after(store_path: Path, epoch: int) -> None:
    """Remove checkpoints and logs of the epochs after *epoch*, the newest first, and checkpoints of steps.

    If the process is killed at any moment, call it again: the trainer records, which make an epoch a
    checkpoint, are removed first in each epoch.
    """
    shutil.rmtree(store_path / STEP_FOLDER, ignore_errors=True)
    epochs = {path: _epoch_of(path.relative_to(store_path).as_posix()) for path in files_below(store_path)}
    later = {path: number for path, number in epochs.items() if number is not None and number > epoch}
    for path in sorted(later, key=lambda path: (later[path], path.name.startswith(TRAINER)), reverse=True):
        path.unlink()
    sync_directory(store_path)


def _epoch_of(name: str) -> int | None:
    """Return the epoch whose checkpoint or log has the path *name* below the store; None if it has none."""
    folder, _, file = name.partition("/")
    parsed = parse_name(file) if folder == CHECKPOINT_FOLDER else None
    match = _LOG.fullmatch(name)
    return parsed.epoch if parsed else int(match[1]) if match else None
