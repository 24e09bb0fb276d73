"""Verification of the files of a run: recorded sizes and hashes, compared with the files on disk."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stages import checkpoints
from stages.checkpoints.file_names import CHECKPOINT_FOLDER, list_epochs, trainer_name
from stages.contracts.errors import CheckpointError
from stages.runs.manifest import LogLedger, Manifest
from stages.runs.publishing import publish
from stages.runs.store import RunStore
from stages.system.files import UNREADABLE, damage


def find_damage(store_path: Path, manifest: Manifest) -> dict[str, str]:
    """Return the files of *manifest* that are not intact, and what is wrong with each."""
    found = ((name, damage(store_path / name, written)) for name, written in manifest.items())
    return {name: problem for name, problem in found if problem}


def results_manifest(store_path: Path, last_epoch: int, kept: Iterable[int]) -> dict[str, Any]:
    """Return the sizes and hashes recorded when logs and checkpoints were written, by path below the store.

    *kept* are the epochs that must have a checkpoint. One whose trainer record cannot be read gets an entry
    that no file matches.
    """
    found = dict(LogLedger(store_path).read(last_epoch))
    directory = store_path / CHECKPOINT_FOLDER
    for epoch in {*list_epochs(directory), *kept}:
        try:
            files = checkpoints.read_manifest(directory, epoch)
        except CheckpointError:
            files = {trainer_name(epoch): UNREADABLE}
        found |= {f"{CHECKPOINT_FOLDER}/{name}": file for name, file in files.items()}
    return found


def publish_results(store: RunStore, outputs: Sequence[Path], untracked: Sequence[Path]) -> dict[str, str]:
    """Replace *outputs* by the files and directories of the same names in *store*, and *untracked* likewise.

    *outputs* are verified with the store's manifest while they are copied. Returns what is wrong with each
    damaged file, by its path below the store; if there is one, nothing is published.
    """
    store.check_exists()
    names = {path.name for path in outputs}
    expected = {
        str(store.path / name): written
        for name, written in store.manifest.items()
        if name.partition("/")[0] in names
    }
    problems = publish({store.path / path.name: path for path in [*outputs, *untracked]}, expected)
    return {Path(name).relative_to(store.path).as_posix(): problem for name, problem in problems.items()}
