"""A run of a deployment goes on where its place in the deployment's limit cannot be renewed.

Prefect's engine renews it all the time, and ends the run where nobody answers for some minutes. For that one
name of Prefect is replaced (`prefect.flow_engine.maintain_concurrency_lease`). The server gives the place to
another run then, which in this workspace waits for the lock of the project.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

import prefect.flow_engine

NAME = "maintain_concurrency_lease"
_maintain: Callable[..., AbstractContextManager[None]] = getattr(prefect.flow_engine, NAME)


def _maintain_or_go_on(lease: UUID, seconds: float, **options: Any) -> AbstractContextManager[None]:
    return _maintain(lease, seconds, **(options | {"raise_on_lease_renewal_failure": False}))


def outlive_the_lease() -> None:
    """Have flow runs of this process go on without their place, with a warning."""
    setattr(prefect.flow_engine, NAME, _maintain_or_go_on)
