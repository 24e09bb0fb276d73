"""The progress of a training as an artifact, kept up by a thread so that no step waits for it."""

import threading
from logging import Logger, LoggerAdapter
from typing import Any
from uuid import UUID

from pipeline.flows.artifacts import Artifacts
from stages.contracts.events import Progress
from stages.contracts.history import History, Split
from stages.renderers.plain import epoch_line

INTERVAL_SECONDS = 5.0
FINAL_UPDATE_SECONDS = 5.0
KEY = "fit-progress"


class ProgressRenderer:
    """Keeps a progress artifact at how far the run is, an interval late at most.

    Only its own thread talks to the server. One that is slow or gone costs the training nothing, and the end
    of it a few seconds.
    """

    def __init__(self, artifacts: Artifacts, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._artifacts = artifacts
        self._interval = interval_seconds
        self._now: tuple[float, str] = (0.0, "")
        self._line = ""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def of_this_run(cls, logger: "Logger | LoggerAdapter[Any]") -> "ProgressRenderer":
        """One for the task run that this is called in; what keeps it from the server is told to *logger*."""
        return cls(Artifacts.of_this_run(logger))

    def start(self, progress: Progress) -> None:
        """Make the artifact."""
        self._note(progress)
        self._over.clear()
        self._thread = threading.Thread(target=self._keep_up, name="progress", daemon=True)
        self._thread.start()

    def log(self, split: Split, epoch: int, name: str, value: float) -> None:
        """Not told."""

    def step(self, progress: Progress) -> None:
        """Note how far it is."""
        self._note(progress)

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Note the epoch's values too."""
        self._line = epoch_line(progress, history)
        self._now = (100.0 * progress.epoch / progress.epochs, self._line)

    def close(self) -> None:
        """Tell the last, if the server takes it soon."""
        self._over.set()
        if self._thread:
            self._thread.join(FINAL_UPDATE_SECONDS)
            self._thread = None

    def _note(self, progress: Progress) -> None:
        part = (
            progress.batch / progress.batches if progress.batches and progress.split is Split.TRAIN else 0.0
        )
        done = max(0.0, progress.epoch - 1 + part)
        self._now = (max(self._now[0], 100.0 * done / progress.epochs), self._line)

    def _keep_up(self) -> None:
        artifact: UUID | None = None
        told: tuple[float, str] | None = None
        is_over = False
        while not is_over:
            is_over = self._over.wait(self._interval if told else 0.0)
            now = self._now
            if artifact is None:
                artifact = self._artifacts.create("progress", KEY, now[0], now[1])
            elif now != told and not self._artifacts.update(artifact, now[0], now[1]):
                continue
            told = now
