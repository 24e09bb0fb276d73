"""Artifacts of a Prefect run, written by a client that does not wait long for a server that is gone."""

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
"""What Prefect's client raises where the server is gone, or has gone."""


@contextmanager
def short_timeout_client() -> Iterator[SyncPrefectClient]:
    """A client of the API that tries everything once, and waits ten seconds at most for an answer."""
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: 10.0}),
        get_client(sync_client=True) as client,
    ):
        yield client


@dataclass(frozen=True)
class Artifacts:
    """The artifacts of one run. One that cannot be written is a warning: it must not end the run."""

    flow_run: UUID | None
    task_run: UUID | None
    logger: "Logger | LoggerAdapter[Any]"

    @classmethod
    def of_this_run(cls, logger: "Logger | LoggerAdapter[Any]") -> "Artifacts":
        """Those of the flow run and the task run that this is called in."""
        flow, task = FlowRunContext.get(), TaskRunContext.get()
        flow_run = flow.flow_run.id if flow and flow.flow_run else None
        return cls(flow_run, task.task_run.id if task else None, logger)

    def create(self, kind: str, key: str, data: Any, description: str = "") -> UUID | None:
        """Write one, under a *key* of lower-case letters, digits and dashes; None where it cannot be."""
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
            said = str(error).split("\n")[0] or type(error).__name__
            self.logger.warning("the artifact %s is not written: %s", key, said)
        return None

    def update(self, artifact: UUID, data: Any, description: str) -> bool:
        """Replace what *artifact* says. Returns whether that was done; nothing is told of it."""
        try:
            with short_timeout_client() as client:
                client.update_artifact(artifact, ArtifactUpdate(data=data, description=description))
        except API_ERRORS:
            return False
        return True
