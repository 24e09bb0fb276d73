"""What build-learner goes on from, brought to where it can read it."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp

from pipeline.project import runs_root
from stages.contracts.errors import ParamsError
from stages.params.build_learner_params import CheckpointConfig

PREFIX = ".resume-"
STALE_SECONDS = 24 * 3600


@contextmanager
def open_checkpoint(checkpoint: CheckpointConfig | None, paths: dict[str, Path]) -> Iterator[Path | None]:
    """Where *checkpoint* lies for as long as the block lasts; None where there is none.

    A revision's comes from DVC's cache, or its remote, to a folder beside the run stores. Raises
    `ParamsError` for a path among the pipeline's own outputs, `CheckpointError` for what is not there.
    """
    if checkpoint is None:
        yield None
    elif checkpoint.path is not None:
        _check_outside(Path(checkpoint.path), paths)
        yield Path(checkpoint.path)
    else:
        with _folder(runs_root()) as folder:
            revisions = import_module("pipeline.revisions.revision")  # it loads DVC, which few runs need here
            revisions.Revision(checkpoint.rev).fetch(checkpoint.epoch, folder)
            yield folder


def _check_outside(path: Path, paths: dict[str, Path]) -> None:
    for output in paths.values():
        if Path(os.path.abspath(path)).is_relative_to(Path(os.path.abspath(output))):  # noqa: PTH100  no link followed
            raise ParamsError(
                f"build_learner.checkpoint.path is {path}, which is an output of this pipeline, and gone "
                "when the next run needs it: `learner resume HEAD --epoch N` goes on from a run that is "
                "committed, or copy it elsewhere"
            )


@contextmanager
def _folder(root: Path) -> Iterator[Path]:
    """A folder of its own below *root*, removed at the end; what a kill left there a day ago goes too."""
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob(f"{PREFIX}*"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    folder = Path(mkdtemp(prefix=PREFIX, dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
