"""The launch of the stage fit on several devices: one rank for each."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from pipeline.engine.rank_launcher import run_ranks
from stages import fit, runs
from stages.contracts.interrupter import Interrupter
from stages.params.fit_context import FitPaths
from stages.params.fit_params import FitConfig
from stages.runs.layout import ranks_of

COMMAND = (sys.executable, "-m", "pipeline", "stage", "fit")


def needs_launch(config: FitConfig) -> bool:
    """Return whether the ranks of *config* are not started yet, by this project or by torchrun."""
    return "RANK" not in os.environ and len(config.list_devices()) > 1


def launch_fit(config: FitConfig, paths: FitPaths, code: Mapping[str, Any], interrupter: Interrupter) -> None:
    """Run the stage fit on one rank for each device of *config*, whose logs are beside the run store.

    Raises `StageError` with the error of the rank that failed first, and `RunInterruptedError` if the ranks
    were stopped and have saved.
    """
    store = paths.runs / runs.run_key(fit.key_entries(config, paths, code))
    run_ranks(
        COMMAND,
        config.list_devices(),
        ranks_of(store),
        interrupter,
        max_restarts=config.max_restarts,
    )
