"""The progress of training as an artifact, updated by a thread so that no step waits for it."""

import threading
from logging import Logger, LoggerAdapter
from typing import Any
from uuid import UUID

from pipeline.flows.artifacts import Artifacts
from stages.contracts.events import Progress
from stages.contracts.history import History, Split
from stages.renderers.plain import format_epoch

INTERVAL_SECONDS = 5.0
FINAL_UPDATE_SECONDS = 5.0
KEY = "fit-progress"


class ProgressRenderer:
    """A renderer that updates a progress artifact, at most one interval late.

    Only its own thread calls the server. A slow or unreachable server does not delay training, and delays its
    end by a few seconds.
    """

    def __init__(self, artifacts: Artifacts, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._artifacts = artifacts
        self._interval = interval_seconds
        self._now: tuple[float, str] = (0.0, "")
        self._line = ""
        self._has_ended = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def of_this_run(cls, logger: "Logger | LoggerAdapter[Any]") -> "ProgressRenderer":
        """Return a renderer for the task run in progress; *logger* receives the errors of the server."""
        return cls(Artifacts.of_this_run(logger))

    def start(self, progress: Progress) -> None:
        """Create the artifact."""
        self._record(progress)
        self._has_ended.clear()
        self._thread = threading.Thread(target=self._update_artifact, name="progress", daemon=True)
        self._thread.start()

    def log(self, split: Split, epoch: int, name: str, value: float) -> None:
        """Ignore the value of one metric; `epoch_end` shows all of them."""

    def step(self, progress: Progress) -> None:
        """Record the progress."""
        self._record(progress)

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Record the progress and the values of the epoch."""
        self._line = format_epoch(progress, history)
        self._now = (100.0 * progress.epoch / progress.epochs, self._line)

    def close(self) -> None:
        """Write the last update, if the server responds soon."""
        self._has_ended.set()
        if self._thread:
            self._thread.join(FINAL_UPDATE_SECONDS)
            self._thread = None

    def _record(self, progress: Progress) -> None:
        part = (
            progress.batch / progress.batches if progress.batches and progress.split is Split.TRAIN else 0.0
        )
        done = max(0.0, progress.epoch - 1 + part)
        self._now = (max(self._now[0], 100.0 * done / progress.epochs), self._line)

    def _update_artifact(self) -> None:
        artifact: UUID | None = None
        sent: tuple[float, str] | None = None
        has_ended = False
        while not has_ended:
            has_ended = self._has_ended.wait(self._interval if sent else 0.0)
            now = self._now
            if artifact is None:
                artifact = self._artifacts.create("progress", KEY, now[0], now[1])
            elif now != sent and not self._artifacts.update(artifact, now[0], now[1]):
                continue
            sent = now
