"""A renderer that forwards to several renderers."""

from collections.abc import Sequence

from stages.contracts.events import Progress, Renderer
from stages.contracts.history import History, Split


class Renderers:
    """Forwards each event to all *renderers*, in their order."""

    def __init__(self, renderers: Sequence[Renderer]) -> None:
        self.renderers = tuple(renderers)

    def start(self, progress: Progress) -> None:
        """Forward to each renderer."""
        for each in self.renderers:
            each.start(progress)

    def log(self, split: Split, epoch: int, name: str, value: float) -> None:
        """Forward to each renderer."""
        for each in self.renderers:
            each.log(split, epoch, name, value)

    def step(self, progress: Progress) -> None:
        """Forward to each renderer."""
        for each in self.renderers:
            each.step(progress)

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Forward to each renderer."""
        for each in self.renderers:
            each.epoch_end(progress, history)

    def close(self) -> None:
        """Forward to each renderer."""
        for each in self.renderers:
            each.close()
