"""`learner resume`: what it writes into params.yaml."""

from collections.abc import Sequence
from typing import Any

from pipeline.overrides import PARAMS, overridden
from pipeline.revisions import Revision, resolved
from stages.contracts.files import write_text


def set_checkpoint(name: str, epoch: int, *, weights_only: bool, overrides: Sequence[str]) -> str:
    """Have params.yaml go on after *epoch* of the revision *name*, with *overrides* as of DVC's -S.

    Returns its full SHA. Nothing is written where the epoch is not there or the params would not be valid.
    Raises `CheckpointError` and `ParamsError`.
    """
    rev = resolved(name)
    Revision(rev).check(epoch)
    checkpoint = {"rev": rev, "epoch": epoch} | ({"weights_only": True} if weights_only else {})

    def go_on(content: dict[str, Any]) -> None:
        content["build_learner"] = {**(content.get("build_learner") or {}), "checkpoint": checkpoint}

    write_text(PARAMS, overridden(overrides, go_on))
    return rev
