"""The progress of a sweep: the outcomes of its points, and the time that the others take."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.sweep.job import Job
from pipeline.sweep.point_progress import PointProgress
from stages.contracts.errors import StageError
from stages.contracts.printing import print_line
from stages.contracts.text import format_duration


@dataclass
class SweepProgress:
    """The outcomes of the points, printed as they finish."""

    total: int
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    before: int = 0
    """Points that had finished before the first one ran."""
    began: float = field(default_factory=time.monotonic)

    def report(self, job: Job, error: Exception | None) -> None:
        """Record that *job* finished, with *error* or with an experiment."""
        if error is None:
            self.done.append(job.name)
            self._print(job.name, f"done{self.format_time_left()}")
        else:
            reason = str(error) if isinstance(error, StageError) else f"{type(error).__name__}: {error}"
            self.add_failed(job.name, reason)

    def add_done(self, name: str, outcome: str) -> None:
        """Record that the point *name* has an experiment, and print *outcome*."""
        self.done.append(name)
        self._print(name, outcome)

    def add_failed(self, name: str, reason: str) -> None:
        """Record that the point *name* has no experiment, and print that."""
        self.failed[name] = reason
        self._print(name, "failed")

    def start(self) -> None:
        """Record that the points which are neither done nor failed run from now on."""
        self.before, self.began = self.count_finished(), time.monotonic()

    def count_finished(self) -> int:
        """Return the number of points that are done or have failed."""
        return len(self.done) + len(self.failed)

    def format_time_left(self, running: Iterable[PointProgress] = ()) -> str:
        """Return the time left, as in ``, about 2 min 5 s left``; empty if it is unknown, or none is left.

        The other points take as long as those that have run, and as the trained part of those in *running*.
        """
        shares = [(each.share, each.gained) for each in running]
        finished = self.count_finished()
        trained = finished - self.before + sum(gained for _, gained in shares)
        left = self.total - finished - sum(share for share, _ in shares)
        if trained <= 0 or left <= 0:
            return ""
        return f", about {format_duration((time.monotonic() - self.began) * left / trained)} left"

    def _print(self, name: str, outcome: str) -> None:
        # above the live table, if any
        print_line(f"[{self.count_finished()}/{self.total}] {name}: {outcome}")
