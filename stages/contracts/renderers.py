"""Several renderers as one."""

from collections.abc import Sequence

from stages.contracts.events import Progress, Renderer
from stages.contracts.history import History, Split


class Renderers:
    """Tells each of *renderers* the same, one after the other."""

    def __init__(self, renderers: Sequence[Renderer]) -> None:
        self.renderers = tuple(renderers)

    def start(self, progress: Progress) -> None:
        """Tell each."""
        for each in self.renderers:
            each.start(progress)

    def log(self, split: Split, epoch: int, name: str, value: float) -> None:
        """Tell each."""
        for each in self.renderers:
            each.log(split, epoch, name, value)

    def step(self, progress: Progress) -> None:
        """Tell each."""
        for each in self.renderers:
            each.step(progress)

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Tell each."""
        for each in self.renderers:
            each.epoch_end(progress, history)

    def close(self) -> None:
        """Tell each."""
        for each in self.renderers:
            each.close()
