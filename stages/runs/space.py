"""Free disk space for the checkpoints of a run."""

import shutil
from pathlib import Path

from stages.contracts.errors import StageError
from stages.contracts.text import format_megabytes


def check_space(path: Path, needed_bytes: int) -> None:
    """Raise `StageError` if the disk of *path* has less than *needed_bytes* free."""
    free = shutil.disk_usage(path).free
    if free < needed_bytes:
        raise StageError(
            f"the disk of {path} has {format_megabytes(free)} free, but the checkpoints to keep and one more "
            f"take up to {format_megabytes(needed_bytes)}. Free some space, or keep fewer checkpoints "
            "(fit.keep)"
        )
