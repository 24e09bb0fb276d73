"""The run of one stage that DVC has started, recorded in Prefect if an API is configured."""

import os
from collections.abc import Callable
from importlib import import_module

from pipeline.engine.stage_run import run_stage
from pipeline.flows import prefect_api
from pipeline.project.versions import VERSIONS


def run_stage_of_dvc(name: str, dvc: int | None, warn: Callable[[str], None]) -> None:
    """Run stage *name* as a Prefect task run if an API is configured, otherwise as a plain function.

    *dvc* is the process that DVC runs in, if any. *warn* receives the warning if the API is unreachable;
    the stage then runs without a record. Prefect is imported only if an API is configured.
    """
    if name in VERSIONS and prefect_api.is_stage_recorded(dvc, warn):
        os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")
        if import_module("pipeline.flows.task_run").run_as_task(name):
            return
        warn("warning: the Prefect server stopped responding, so this stage is not recorded there")
    run_stage(name)
