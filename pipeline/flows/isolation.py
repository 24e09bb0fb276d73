"""A run as an isolated, named experiment: DVC runs in a copy of the workspace, which stays as it is."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from logging import Logger, LoggerAdapter
from typing import Any

from pipeline.attached import run_dvc
from pipeline.flows.membership import FLOW_RUN

_IS_LOGGED = re.compile(r"\d\d:\d\d:\d\d\.\d{3} \| ")
"""How the lines begin that a stage has logged to the server itself."""


@dataclass(frozen=True)
class Choice:
    """What an experiment is to be."""

    name: str
    overrides: Sequence[str]
    """As of DVC's -S."""
    targets: Sequence[str]
    """Stages; all where there are none."""


def run_experiment(
    choice: Choice, logger: "Logger | LoggerAdapter[Any]", *, flow_run: str, deadline: float | None
) -> None:
    """Run what is chosen as an experiment; *logger* hears of it.

    The copy is git's HEAD with what is changed in tracked files. The stages are tasks of *flow_run*. Where it
    is stopped, the next run with the same params goes on from what it saved. Raises as `run_dvc` does.
    """

    def say(line: str) -> None:
        if _IS_LOGGED.match(line):
            sys.stdout.write(f"{line}\n")
        elif line:
            logger.info("%s", line)

    sets = [part for each in choice.overrides for part in ("--set-param", each)]
    command = ["exp", "run", "--temp", "--name", choice.name, *sets, *choice.targets]
    run_dvc(command, {FLOW_RUN: flow_run}, say=say, deadline=deadline)
