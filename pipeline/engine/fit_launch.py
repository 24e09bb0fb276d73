"""The launch of the stage fit on several devices: one rank for each."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from pipeline.engine.rank_launcher import run_ranks
from pipeline.engine.run_display import display_run
from stages import fit, metrics, runs
from stages.contracts.events import Interrupter, Progress, Renderer, Shown
from stages.params.fit_context import FitPaths
from stages.params.fit_params import FitConfig
from stages.runs.layout import ranks_of
from stages.system.processes import module_command


def needs_launch(config: FitConfig) -> bool:
    """Return whether the ranks of *config* are not started yet, by this project or by torchrun."""
    return "RANK" not in os.environ and len(config.list_devices()) > 1


def launch_fit(
    config: FitConfig,
    paths: FitPaths,
    code: Mapping[str, Any],
    interrupter: Interrupter,
    *,
    renderer: Renderer | None = None,
) -> None:
    """Run the stage fit on one rank for each device of *config*, whose logs are beside the run store.

    Rank 0 prints its progress, and *renderer* shows it in this process too. Raises `StageError` with the
    error of the rank that failed first, and `RunInterruptedError` if the ranks were stopped and have saved.
    """
    store = paths.runs / runs.run_key(fit.key_entries(config, paths, code))
    devices, folder = config.list_devices(), ranks_of(store)
    with ExitStack() as stack:
        if renderer is not None:
            progress = Progress(config.num_epochs, shown=_list_shown(config), interrupter=interrupter)
            stack.enter_context(display_run(store, renderer, progress))
        run_ranks(
            module_command("pipeline", "stage", "fit"),
            devices,
            folder,
            interrupter,
            max_restarts=config.max_restarts,
        )


def _list_shown(config: FitConfig) -> dict[str, Shown]:
    """Return the display options of the metrics of *config*, by name."""
    built = [metrics.build_metric(each) for each in config.metrics]
    return {each.name: Shown(each.unit, getattr(each, "decimals", 2)) for each in built}
