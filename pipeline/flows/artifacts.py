"""Artifacts of a Prefect run, written by a client with a short timeout for an unreachable server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging import Logger, LoggerAdapter
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

API_ERRORS = (httpx.HTTPError, PrefectException, RuntimeError)
"""The exceptions that Prefect's client raises if the server is unreachable."""


@contextmanager
def short_timeout_client() -> Iterator[SyncPrefectClient]:
    """Yield a client of the API that makes each request once, with a timeout of ten seconds."""
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: 10.0}),
        get_client(sync_client=True) as client,
    ):
        yield client


@dataclass(frozen=True)
class Artifacts:
    """The artifacts of one run; one that cannot be written is a warning and does not end the run."""

    flow_run: UUID | None
    task_run: UUID | None
    logger: "Logger | LoggerAdapter[Any]"

    @classmethod
    def of_this_run(cls, logger: "Logger | LoggerAdapter[Any]") -> "Artifacts":
        """Return the artifacts of the flow run and the task run in progress."""
        flow, task = FlowRunContext.get(), TaskRunContext.get()
        flow_run = flow.flow_run.id if flow and flow.flow_run else None
        return cls(flow_run, task.task_run.id if task else None, logger)

    def create(self, kind: str, key: str, data: Any, description: str = "") -> UUID | None:
        """Write an artifact and return its id; None if it cannot be written.

        *key* has lower-case letters, digits and dashes.
        """
        artifact = ArtifactCreate(
            type=kind,
            key=key,
            description=description,
            data=data,
            flow_run_id=self.flow_run,
            task_run_id=self.task_run,
        )
        try:
            with short_timeout_client() as client:
                return client.create_artifact(artifact).id
        except API_ERRORS as error:
            reason = str(error).split("\n")[0] or type(error).__name__
            self.logger.warning("the artifact %s is not written: %s", key, reason)
        return None

    def update(self, artifact: UUID, data: Any, description: str) -> bool:
        """Replace the content of *artifact*, and return whether that succeeded, without a log line."""
        try:
            with short_timeout_client() as client:
                client.update_artifact(artifact, ArtifactUpdate(data=data, description=description))
        except API_ERRORS:
            return False
        return True
