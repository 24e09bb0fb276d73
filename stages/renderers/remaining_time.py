"""The finished share of a run, and an estimate of its remaining time."""

from stages.contracts.events import Progress
from stages.contracts.history import Split

UNKNOWN_TIME = "---"
WARM_UP_ITERATIONS = 10
"""Training steps before the first estimate."""
UNITS = ((86400, "day"), (3600, "hour"), (60, "min"), (1, "sec"))


class RemainingTime:
    """An estimator of the remaining time, which records when the run and the current split started.

    All times are seconds of one monotonic clock.
    """

    def __init__(self, now: float) -> None:
        self._run_start = now
        self._split_start = now
        self._current: tuple[int, Split] | None = None

    def estimate(self, progress: Progress, now: float) -> tuple[str, str]:
        """Return the remaining times of the current split and of the run as text.

        A split starts at the first call in it, so call this method several times per split.
        """
        if self._current != (progress.epoch, progress.split):
            self._current = progress.epoch, progress.split
            self._split_start = now
        split = format_remaining_time(now - self._split_start, compute_split_share(progress), progress.batch)
        run = format_remaining_time(
            now - self._run_start, compute_run_share(progress), count_run_iterations(progress)
        )
        return split, run


def compute_split_share(progress: Progress) -> float:
    """Return the finished share of the current epoch and split, from 0 to 1."""
    return progress.batch / progress.batches if progress.batches else 0.0


def compute_run_share(progress: Progress) -> float:
    """Return the finished share of the training since this run started or resumed, from 0 to 1.

    Validation does not count.
    """
    epochs = progress.epochs - progress.first_epoch + 1
    if progress.epoch < progress.first_epoch or epochs < 1:
        return 0.0
    epoch_share = compute_split_share(progress) if progress.split is Split.TRAIN else 1.0
    return (progress.epoch - progress.first_epoch + epoch_share) / epochs


def count_run_iterations(progress: Progress) -> int:
    """Return a lower bound of the training steps since this run started, sufficient to end the warm-up."""
    epochs = progress.epoch - progress.first_epoch
    if progress.split is Split.TRAIN:
        return progress.batch + epochs * progress.batches
    return WARM_UP_ITERATIONS


def format_remaining_time(elapsed: float, share: float, iterations: int) -> str:
    """Return the remaining time in its largest unit, such as ``3 mins``, or ``---`` during the warm-up.

    The warm-up ends after 10 *elapsed* seconds and `WARM_UP_ITERATIONS` *iterations*, at the latest after 30
    seconds. *share* is the finished share, from 0 to 1.
    """
    is_warm = elapsed > 30 or (elapsed > 10 and iterations >= WARM_UP_ITERATIONS)
    if not is_warm or share <= 0:
        return UNKNOWN_TIME
    return format_largest_unit(elapsed * (1 - share) / share)


def format_largest_unit(seconds: float) -> str:
    """Return *seconds* in the largest unit, rounded down: ``45 secs``, ``1 min``, ``2 hours``, ``3 days``."""
    for size, name in UNITS:
        count = int(seconds // size)
        if count:
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "0 secs"
