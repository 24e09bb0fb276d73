"""How far a run is, and how long it will take."""

from stages.contracts.events import Progress
from stages.contracts.history import Split

UNKNOWN = "---"
WARM_UP_ITERATIONS = 10
UNITS = ((86400, "day"), (3600, "hour"), (60, "min"), (1, "sec"))


class Pace:
    """Remembers when the run and the split at hand began."""

    def __init__(self, now: float) -> None:
        self._run_began = now
        self._split_began = now
        self._at: tuple[int, Split] | None = None

    def left(self, progress: Progress, now: float) -> tuple[str, str]:
        """The time left of the split, and of the run; called now and then, with the seconds of a clock."""
        if self._at != (progress.epoch, progress.split):
            self._at = progress.epoch, progress.split
            self._split_began = now
        of_split = time_left(now - self._split_began, split_share(progress), progress.batch)
        of_run = time_left(now - self._run_began, run_share(progress), run_iterations(progress))
        return of_split, of_run


def split_share(progress: Progress) -> float:
    """How much of this epoch and split is done, from 0 to 1."""
    return progress.batch / progress.batches if progress.batches else 0.0


def run_share(progress: Progress) -> float:
    """How much of the training since this run began is done, from 0 to 1; validation does not count."""
    epochs = progress.epochs - progress.first_epoch + 1
    if progress.epoch < progress.first_epoch or epochs < 1:
        return 0.0
    of_epoch = split_share(progress) if progress.split is Split.TRAIN else 1.0
    return (progress.epoch - progress.first_epoch + of_epoch) / epochs


def run_iterations(progress: Progress) -> int:
    """How many training steps were at least taken since this run began: enough to tell the warm-up's end."""
    epochs = progress.epoch - progress.first_epoch
    if progress.split is Split.TRAIN:
        return progress.batch + epochs * progress.batches
    return WARM_UP_ITERATIONS


def time_left(elapsed: float, share: float, iterations: int) -> str:
    """``3 mins``, ``2 hours``: the largest unit of what is left, or ``---`` while that would be a guess."""
    warm = elapsed > 30 or (elapsed > 10 and iterations >= WARM_UP_ITERATIONS)
    if not warm or share <= 0:
        return UNKNOWN
    return largest_unit(elapsed * (1 - share) / share)


def largest_unit(seconds: float) -> str:
    """``45 secs``, ``1 min``, ``2 hours``, ``3 days``: whole ones, rounded down."""
    for size, name in UNITS:
        count = int(seconds // size)
        if count:
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "0 secs"
