"""Artifacts of a Prefect run, written by a client with a short timeout for an unreachable server.

The artifact of the progress of training is updated by a thread, so that no step waits for the server.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from logging import Logger, LoggerAdapter
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext, SettingsContext, TaskRunContext, get_settings_context
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_CLIENT_MAX_RETRIES, Settings

from stages.contracts.events import NoRenderer, Progress
from stages.contracts.history import History, Split
from stages.renderers.plain import format_epoch

API_ERRORS = (httpx.HTTPError, PrefectException, RuntimeError, ValueError)
"""The exceptions that Prefect's client raises if the server does not respond as an API."""
PROGRESS_KEY = "fit-progress"
PROGRESS_INTERVAL_SECONDS = 5.0
FINAL_UPDATE_SECONDS = 5.0
"""Time limit for the last update of the progress."""


@contextmanager
def short_timeout_client() -> Iterator[SyncPrefectClient]:
    """Yield a client of the API that makes each request once, with a timeout of ten seconds."""
    context = get_settings_context()
    short = SettingsContext(profile=context.profile, settings=_shorten_timeout(context.settings))
    with short, get_client(sync_client=True) as client:
        yield client


_shortened: tuple[Settings, Settings] | None = None
"""The last settings that `_shorten_timeout` has received, and the result: it takes 0.3 s."""


def _shorten_timeout(settings: Settings) -> Settings:
    global _shortened  # noqa: PLW0603  settings have no hash, and two threads may both compute the result
    if (last := _shortened) and last[0] is settings:
        return last[1]
    changed = settings.copy_with_update(
        updates={PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: 10.0}
    )
    _shortened = settings, changed
    return changed


@dataclass(frozen=True)
class Artifacts:
    """The artifacts of one run. The methods raise one of `API_ERRORS` if the server does not respond."""

    flow_run: UUID | None
    task_run: UUID | None
    logger: "Logger | LoggerAdapter[Any]"

    @classmethod
    def of_this_run(cls, logger: "Logger | LoggerAdapter[Any]") -> "Artifacts":
        """Return the artifacts of the flow run and the task run in progress."""
        flow, task = FlowRunContext.get(), TaskRunContext.get()
        flow_run = flow.flow_run.id if flow and flow.flow_run else None
        return cls(flow_run, task.task_run.id if task else None, logger)

    def create(self, kind: str, key: str, data: Any, description: str) -> UUID:
        """Write an artifact and return its id; *key* has lower-case letters, digits and dashes."""
        artifact = ArtifactCreate(
            type=kind,
            key=key,
            description=description,
            data=data,
            flow_run_id=self.flow_run,
            task_run_id=self.task_run,
        )
        with short_timeout_client() as client:
            return client.create_artifact(artifact).id

    def update(self, artifact: UUID, data: Any, description: str) -> None:
        """Replace the content of *artifact*."""
        with short_timeout_client() as client:
            client.update_artifact(artifact, ArtifactUpdate(data=data, description=description))


class ProgressRenderer(NoRenderer):
    """A renderer that updates a progress artifact, at most one interval late.

    Only its own thread calls the server. A slow or unreachable server does not delay training, and delays its
    end by a few seconds.
    """

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts
        self._now: tuple[float, str] = (0.0, "")
        self._line = ""
        self._has_ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, progress: Progress) -> None:
        """Create the artifact."""
        self._record(progress)
        self._thread = threading.Thread(target=self._update_artifact, name="progress", daemon=True)
        self._thread.start()

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
        has_ended, pause = False, 0.0
        while not has_ended:
            has_ended, pause = self._has_ended.wait(pause), PROGRESS_INTERVAL_SECONDS
            now = self._now
            with suppress(*API_ERRORS):  # the next update is tried, and the end of the run reports an outage
                if artifact is None:
                    artifact = self._artifacts.create("progress", PROGRESS_KEY, now[0], now[1])
                elif now != sent:
                    self._artifacts.update(artifact, now[0], now[1])
                sent = now
