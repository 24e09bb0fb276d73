"""The checkpoint that build-learner starts from, copied to a folder if it is in DVC's cache."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp

from pipeline.project.paths import runs_root
from stages.contracts.errors import ParamsError
from stages.params.build_learner_params import CheckpointConfig

PREFIX = ".resume-"
STALE_SECONDS = 24 * 3600
"""Age of a folder of a killed process after which it is removed."""


@contextmanager
def open_checkpoint(checkpoint: CheckpointConfig | None, paths: dict[str, Path]) -> Iterator[Path | None]:
    """Yield the folder of *checkpoint*, which is valid in the block; None if *checkpoint* is None.

    The checkpoint of a revision is copied from DVC's cache, or its remote, to a folder next to the run
    stores. Raises `ParamsError` for a path among the pipeline's own outputs, and `CheckpointError` if the
    checkpoint is missing.
    """
    if checkpoint is None:
        yield None
    elif checkpoint.path is not None:
        _check_outside(Path(checkpoint.path), paths)
        yield Path(checkpoint.path)
    else:
        with _folder(runs_root()) as folder:
            revisions = import_module(
                "pipeline.project.revisions.revision"
            )  # imports DVC, which few runs need here
            revisions.Revision(checkpoint.rev).fetch(checkpoint.epoch, folder)
            yield folder


def _check_outside(path: Path, paths: dict[str, Path]) -> None:
    for output in paths.values():
        if Path(os.path.abspath(path)).is_relative_to(Path(os.path.abspath(output))):  # noqa: PTH100  no link followed
            raise ParamsError(
                f"build_learner.checkpoint.path is {path}, an output of this pipeline, which DVC removes "
                "before the next run. Run `learner resume HEAD --epoch N` to resume a committed run, or copy "
                "the checkpoint to another folder"
            )


@contextmanager
def _folder(root: Path) -> Iterator[Path]:
    """Yield a temporary folder below *root*, and remove stale ones of killed processes."""
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
