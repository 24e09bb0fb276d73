"""Entry point of the processes that Prefect starts for one run of a deployment.

Such a process imports this module, takes the flow `learner` from it, and begins the run. Prefect offers no
other moment before the run begins, so the process is prepared at the end of this module. An import in any
other process has no effect.
"""

import logging
import os
from pathlib import Path
from uuid import UUID

from pipeline.engine.process_tree import terminate_once_with_parent
from pipeline.flows import prefect_patches
from pipeline.flows.flow import SERVER_VARIABLE, learner
from pipeline.flows.run_registry import register_flow_run
from pipeline.flows.server_outage import RUN_VARIABLE
from pipeline.flows.task_run import hide_expected_errors
from pipeline.project.reads import record_reads
from stages.contracts.printing import CleanRecord

__all__ = ["ENTRYPOINT", "learner"]

ENTRYPOINT = f"{__name__}.learner"
"""What a deployment names as its flow."""


def prepare_process(flow_run: UUID) -> None:
    """Prepare a process that Prefect started for *flow_run*, before the run begins.

    Raises `StageError` if the installed Prefect does not have a name that is replaced.
    """
    logging.setLogRecordFactory(CleanRecord)
    _leave_search_path()
    record_reads().record_loaded()
    prefect_patches.apply()
    hide_expected_errors()
    register_flow_run(flow_run)
    if SERVER_VARIABLE in os.environ:
        terminate_once_with_parent(int(os.environ[SERVER_VARIABLE]))


def _leave_search_path() -> None:
    """Remove the project from the search path of the processes that this one starts.

    Its modules are imported last, and an experiment has copies of them. In a checkout, the project is also
    the folder of this package, from which this module was imported.
    """
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(folder for folder in folders if folder != str(Path.cwd()))


if RUN_VARIABLE in os.environ:
    prepare_process(UUID(os.environ[RUN_VARIABLE]))
