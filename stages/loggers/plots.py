"""All the files that `dvc plots` shows of a run."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from stages.contracts.errors import ParamsError
from stages.contracts.history import History, Split
from stages.loggers.confusion import write_confusion
from stages.loggers.curves import write_curves
from stages.loggers.iterations import write_iterations


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


def write_plots(
    history: History, confusion: Iterable[tuple[int, int, int]], logs: Path, paths: PlotPaths
) -> None:
    """The curves of *history*, those of every batch from the *logs* of an artifact directory, *confusion*."""
    write_curves(history, paths.plots)
    for split in Split:
        write_iterations(logs / split, paths.iterations / split)
    write_confusion(confusion, paths.confusion)
