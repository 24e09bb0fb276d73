"""Free disk space for the checkpoints of a run."""

import shutil
from pathlib import Path

from stages.contracts.errors import StageError


def check_space(path: Path, needed_bytes: int) -> None:
    """Raise `StageError` if the disk of *path* has less than *needed_bytes* free."""
    free = shutil.disk_usage(path).free
    if free < needed_bytes:
        raise StageError(
            f"the disk of {path} has {_megabytes(free)} free, but the checkpoints to keep and one more "
            f"take up to {_megabytes(needed_bytes)}. Make space, or keep fewer (fit.keep)"
        )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
