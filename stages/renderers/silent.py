"""A run that nobody watches."""

from stages.contracts.events import Progress
from stages.contracts.history import History, Split


class NoRenderer:
    """Shows nothing."""

    def start(self, progress: Progress) -> None:
        """Not shown."""

    def log(self, split: Split, epoch: int, name: str, value: float) -> None:
        """Not shown."""

    def step(self, progress: Progress) -> None:
        """Not shown."""

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Not shown."""

    def close(self) -> None:
        """Nothing is open."""
