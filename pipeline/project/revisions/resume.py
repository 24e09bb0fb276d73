"""The change of params.yaml by `learner resume`, and its reversal."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipeline.project.params_edit import PARAMS, override_params
from pipeline.project.revisions.names import resolve
from pipeline.project.revisions.revision import Revision
from stages.system.files import open_atomic, write_text


@dataclass
class Attempt:
    """A run with the new params.yaml."""

    is_accepted: bool = False
    """Whether build-learner accepted the checkpoint."""

    def report(self, name: str, _outcome: str) -> None:
        """Record that stage *name* is up to date."""
        self.is_accepted = self.is_accepted or name == "build-learner"


@contextmanager
def restore_params_unless_accepted(before: bytes) -> Iterator[Attempt]:
    """Restore params.yaml to *before* if the block raises before build-learner accepts the checkpoint.

    An edit of params.yaml during the block is kept. After build-learner has accepted the checkpoint, the new
    params.yaml is kept, because the same run resumes with it.
    """
    attempt, written = Attempt(), PARAMS.read_bytes()
    try:
        yield attempt
    except BaseException:
        if not attempt.is_accepted and PARAMS.read_bytes() == written:
            with open_atomic(PARAMS) as file:
                file.write(before)
        raise


def set_checkpoint(name: str, epoch: int, *, weights_only: bool, overrides: Sequence[str]) -> str:
    """Set the checkpoint in params.yaml to *epoch* of the revision *name*, and return its full SHA.

    *overrides* are other params, in the syntax of DVC's ``-S``. Raises `CheckpointError` if the epoch is
    missing and `ParamsError` if the params would not be valid; then params.yaml does not change.
    """
    rev = resolve(name)
    Revision(rev).check(epoch)
    checkpoint = {"rev": rev, "epoch": epoch} | ({"weights_only": True} if weights_only else {})

    def add_checkpoint(content: dict[str, Any]) -> None:
        content["build_learner"] = {**(content.get("build_learner") or {}), "checkpoint": checkpoint}

    write_text(PARAMS, override_params(overrides, add_checkpoint))
    return rev
