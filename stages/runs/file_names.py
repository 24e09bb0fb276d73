"""Names of the files of checkpoints: the only module that builds or parses them.

The checkpoint of epoch N consists of the files ``model-N``, ``optim-N``, ``scheduler-N`` and ``trainer-N``,
each with the suffix of its format. The first three are Burn's. ``trainer-N`` is an addition of this project
and is written last: a checkpoint exists if and only if this file does. While its files are written or removed
there is an empty file ``.trainer-N.part``; without both, the files of epoch N may be those of Burn.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SPEC_FILE = "learner.json"
"""The file from which the learner of a run can be built again."""
CHECKPOINT_FOLDER = "checkpoint"
"""Directory of the checkpoints of epochs, in an artifact directory and in a run store."""
STEP_FOLDER = "steps"
"""Directory of the checkpoint within an epoch. Its files have the number of the save in place of an epoch."""
ENVIRONMENT_FILE = "environment.json"
"""Beside these directories: the build and the machine that wrote the newest checkpoint. Nothing tracks it."""
BURN_PARTS = ("model", "optim", "scheduler")
"""Parts of a checkpoint that Burn has too."""
TRAINER = "trainer"
TRAINER_SUFFIX = ".mpk.gz"
_NAME = re.compile(rf"({'|'.join((*BURN_PARTS, TRAINER))})-(\d+)(\..+)")


@dataclass(frozen=True)
class CheckpointFileName:
    """The parts of the name of a checkpoint's file."""

    part: str
    """One of `BURN_PARTS`, or `TRAINER`."""
    epoch: int
    suffix: str
    """The rest of the name, such as ``.mpk.gz``."""

    @property
    def is_trainer(self) -> bool:
        """True if the file makes its epoch a checkpoint."""
        return self.part == TRAINER and self.suffix == TRAINER_SUFFIX


def stem_of(part: str, epoch: int) -> str:
    """Return the name of the file of *part* and *epoch* without its suffix: recorders add their own."""
    return f"{part}-{epoch}"


def trainer_name(epoch: int) -> str:
    """Return the name of the file that makes *epoch* a checkpoint."""
    return f"{stem_of(TRAINER, epoch)}{TRAINER_SUFFIX}"


def marker_name(epoch: int) -> str:
    """Return the name of the file that exists while this project writes or removes the files of *epoch*."""
    return f".{stem_of(TRAINER, epoch)}.part"


def parse_name(name: str) -> CheckpointFileName | None:
    """Return the parts of the file name *name*; None if it is not the name of a checkpoint's file."""
    match = _NAME.fullmatch(name)
    return CheckpointFileName(match[1], int(match[2]), match[3]) if match else None


def parse_partial_name(name: str) -> CheckpointFileName | None:
    """Return the parts of the name of a file that is being written, such as ``.model-3.mpk.gz.part``."""
    return parse_name(name[1:]) if name.startswith(".") else None


def epochs_in(names: Iterable[str]) -> list[int]:
    """Return the epochs, in ascending order, that have a checkpoint among the file names *names*."""
    return sorted(parsed.epoch for parsed in map(parse_name, names) if parsed and parsed.is_trainer)


def list_epochs(directory: Path) -> list[int]:
    """Return the epochs, in ascending order, that have a checkpoint in *directory*; none if it is missing."""
    return epochs_in(_list_names(directory))


def _list_names(directory: Path) -> set[str]:
    try:
        return {path.name for path in directory.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def list_unmarked_epochs(directory: Path) -> list[int]:
    """Return the epochs, in ascending order, that have a model but no file of this project alone."""
    names = _list_names(directory)
    epochs = {parsed.epoch for parsed in map(parse_name, names) if parsed and parsed.part == BURN_PARTS[0]}
    return sorted(epoch for epoch in epochs if names.isdisjoint({trainer_name(epoch), marker_name(epoch)}))


def files_of(directory: Path, epoch: int, *, part: str = "*") -> Iterator[Path]:
    """Yield the files of *epoch* in *directory*, sorted by name; with *part*, those of one part."""
    for path in sorted(directory.glob(f"{part}-{epoch}.*")):
        if parse_name(path.name):
            yield path
