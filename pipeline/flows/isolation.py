"""Isolated, named experiments: DVC runs in a clone of the project, and the checkout stays unchanged.

`dvc exp run --temp` stashes, detaches HEAD and resets in the folder that it is started in, and a kill leaves
this unfinished. So it is never started in the user's checkout.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

from pipeline.engine.cache_content import remove_damaged_outputs
from pipeline.engine.dvc_process import run_dvc
from pipeline.engine.frozen_inputs import freeze
from pipeline.engine.project_copy import (
    COPY_SUFFIX,
    LOCK_SUFFIX,
    fetch_experiment,
    remove_orphaned,
    temporary_copy,
    wait_until_unused,
)
from pipeline.flows.prefect_api import FLOW_RUN
from stages.contracts.file_lock import hold_lock
from stages.runs.layout import COPIES_FOLDER

_IS_LOGGED = re.compile(r"\d\d:\d\d:\d\d\.\d{3} \| ")
"""Matches the beginning of a line that a stage has logged to the server itself."""
EXIT_SECONDS = 60.0
"""Time limit for the processes of a killed attempt to save and exit."""


@dataclass(frozen=True)
class Experiment:
    """The name, params and stages of an experiment."""

    name: str
    overrides: Sequence[str]
    """In the syntax of DVC's -S."""
    targets: Sequence[str]
    """Stages; empty for all."""


def run_experiment(
    experiment: Experiment, logger: "Logger | LoggerAdapter[Any]", *, flow_run: str, deadline: float | None
) -> None:
    """Run *experiment* as an experiment and log its output to *logger*.

    The clone is git's HEAD with the changes in tracked files. The stages are tasks of *flow_run*. If it is
    stopped, the next run with the same params resumes from what it saved. Raises as `run_dvc` does, and
    `StageError` if git fails.
    """

    def log_line(line: str) -> None:
        if _IS_LOGGED.match(line):
            sys.stdout.write(f"{line}\n")
        elif line:
            logger.info("%s", line)

    sets = [part for each in experiment.overrides for part in ("--set-param", each)]
    command = ["exp", "run", "--temp", "--name", experiment.name, *sets, *experiment.targets]
    base = freeze(Path.cwd())
    remove_damaged_outputs(base.root)
    place = base.root / COPIES_FOLDER / f"{experiment.name}{COPY_SUFFIX}"
    place.parent.mkdir(parents=True, exist_ok=True)
    remove_orphaned(place.parent)
    wait_until_unused(place, EXIT_SECONDS)
    with hold_lock(place.with_suffix(LOCK_SUFFIX)), temporary_copy(base, place) as folder:
        run_dvc(command, {FLOW_RUN: flow_run}, log_line=log_line, deadline=deadline, folder=folder)
        fetch_experiment(base, place, experiment.name)
    place.with_suffix(LOCK_SUFFIX).unlink(missing_ok=True)
