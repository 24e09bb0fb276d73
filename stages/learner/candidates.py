"""Where a run can be taken up: the checkpoints there are, and the newest of them that is whole."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from stages.checkpoints import Checkpoint, FileCheckpointer
from stages.contracts.errors import CheckpointError
from stages.learner.place import Place

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that is there, read or yet to be read."""

    order: tuple[int, bool, int]
    """How far it is, as `Place.order` says."""
    name: str
    read: Callable[[], Checkpoint]


def _any_logs(positions: Mapping[str, Any]) -> None:
    """Accept logs at all *positions*."""


def newest(
    epochs: FileCheckpointer,
    steps: FileCheckpointer,
    *,
    last_epoch: int,
    identity: str | None,
    verify_logs: Callable[[Mapping[str, Any]], None] = _any_logs,
) -> Checkpoint | None:
    """Return the newest intact checkpoint that is not after *last_epoch*; None if there was never one.

    Those passed over are logged as warnings: also one of a step if *verify_logs* raises for its logs.
    Raises `CheckpointError` if there are checkpoints and none is intact, and for a checkpoint of a run
    other than *identity*.
    """
    found, broken = _of_steps(steps, verify_logs)
    found += [
        Candidate((epoch + 1, False, 0), f"epoch {epoch}", partial(epochs.restore, epoch))
        for epoch in epochs.saved()
        if epoch <= last_epoch
    ]
    for candidate in sorted(found, key=lambda each: each.order, reverse=True):
        if candidate.order > (last_epoch + 1, False, 0):
            continue
        try:
            checkpoint = candidate.read()
        except CheckpointError as error:
            log.warning("Passing over the checkpoint of %s: %s", candidate.name, error)
            broken.append(str(error))
            continue
        _check_identity(checkpoint, identity, candidate.name)
        return checkpoint
    if broken:
        raise CheckpointError(
            "none of the checkpoints there are is whole, and to start again from nothing would lose them:\n  "
            + "\n  ".join(broken)
            + f"\nTo start again all the same, remove {epochs.directory.parent}"
        )
    return None


def _of_steps(
    steps: FileCheckpointer, verify_logs: Callable[[Mapping[str, Any]], None]
) -> tuple[list[Candidate], list[str]]:
    found, broken = [], []
    for number in reversed(steps.saved()):
        try:
            checkpoint = steps.restore(number)
            place = Place.from_tree(checkpoint.trainer["place"])
            verify_logs(place.logs)
        except (CheckpointError, KeyError) as error:
            log.warning("Passing over a checkpoint of a step: %s", error)
            broken.append(str(error))
        else:
            found.append(Candidate(place.order, f"a step {place}", partial(_itself, checkpoint)))
    return found, broken


def _itself(checkpoint: Checkpoint) -> Checkpoint:
    return checkpoint


def _check_identity(checkpoint: Checkpoint, identity: str | None, name: str) -> None:
    other = checkpoint.trainer.get("identity")
    if identity is not None and other not in (None, identity):
        raise CheckpointError(
            f"the checkpoint of {name} is of run {other}, and this is run {identity}: it was put here by hand"
        )
