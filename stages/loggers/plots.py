"""All the files that `dvc plots` shows of a run."""

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from errno import EDQUOT, EIO, ENOSPC, EROFS
from functools import partial
from pathlib import Path

from stages.contracts.errors import ParamsError
from stages.contracts.history import History, Split
from stages.loggers.confusion import write_confusion
from stages.loggers.curves import write_curves, write_metrics
from stages.loggers.iterations import write_iterations

DISK_ERRORS = (EDQUOT, EIO, ENOSPC, EROFS)
"""Errors that would affect any file, so that the other results cannot be written either."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlotPaths:
    """Where they go."""

    plots: Path
    """A directory; the others lie in it."""
    iterations: Path
    confusion: Path

    def moved(self, directory: Path) -> "PlotPaths":
        """The same in *directory*. Raises `ParamsError` where one does not lie in ``plots``."""
        for each in fields(self):
            path = getattr(self, each.name)
            if not path.is_relative_to(self.plots):
                raise ParamsError(
                    f"dvc.yaml: paths.{each.name} is {str(path)!r}, which does not lie in paths.plots, "
                    f"{str(self.plots)!r}: it must, as they are one output"
                )
        places = (directory / path.relative_to(self.plots) for path in (self.iterations, self.confusion))
        return PlotPaths(directory, *places)


def write_results(
    history: History, confusion: Sequence[tuple[int, ...]], directory: Path, paths: PlotPaths
) -> None:
    """Write ``metrics.json`` to the artifact directory *directory*, and replace all plots."""
    write_metrics(history, directory / "metrics.json")
    shutil.rmtree(paths.plots, ignore_errors=True)
    write_plots(history, confusion, directory, paths)


def write_plots(history: History, confusion: Sequence[tuple[int, ...]], logs: Path, paths: PlotPaths) -> None:
    """Write the curves of *history*, those of every batch, and the cells *confusion* of a confusion matrix.

    The values of the batches come from *logs*, an artifact directory. A plot that cannot be written is a
    warning, and the others are written nevertheless. Raises `OSError` if the disk does not accept any file:
    the caller can repeat the call when it does.
    """
    plots: dict[str, Callable[[], None]] = {
        "the curves": lambda: write_curves(history, paths.plots),
        **{
            f"the {split} curves of every batch": partial(
                write_iterations, logs / split, paths.iterations / split
            )
            for split in Split
        },
        "the confusion matrix": lambda: write_confusion(confusion, paths.confusion),
    }
    for name, write in plots.items():
        try:
            write()
        except Exception as error:
            if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                raise
            log.warning(
                "%s cannot be written to %s: %r. The results of the training are not affected",
                name,
                paths.plots,
                error,
            )
