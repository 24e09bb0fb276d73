"""A run as an isolated, named experiment: DVC runs in a copy of the workspace, which stays as it is."""

from collections.abc import Sequence

from pipeline.attached import run_dvc
from pipeline.membership import FLOW_RUN


def run_experiment(
    name: str, overrides: Sequence[str], targets: Sequence[str], *, flow_run: str, deadline: float | None
) -> None:
    """Run *targets* (all stages where there are none) as experiment *name*, with *overrides* as of DVC's -S.

    The copy is git's HEAD with what is changed in tracked files. The stages are tasks of *flow_run*. Where it
    is stopped, the next run with the same params goes on from what it saved. Raises as `run_dvc` does.
    """
    sets = [part for each in overrides for part in ("--set-param", each)]
    command = ["exp", "run", "--temp", "--name", name, *sets, *targets]
    run_dvc(command, {FLOW_RUN: flow_run}, deadline=deadline)
