"""save-model: one epoch's weights, as the file that leaves the project."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stages import checkpoints, learner, records
from stages.contracts.config import Config
from stages.contracts.errors import CheckpointError, StageError

VERSION = "1"


class SaveModelConfig(Config):
    """The section ``save_model``."""

    recorder: Literal["default", "compact"] = "default"
    """Burn's: ``default`` keeps every bit, ``compact`` halves floats to 16 bits."""
    epoch: Literal["last", "best"] = "last"
    """The last one, or the one with the lowest validation loss."""


@dataclass(frozen=True)
class Paths:
    """What the stage reads and writes."""

    checkpoint: Path
    config: Path
    model: Path


def save_model(config: SaveModelConfig, paths: Paths) -> None:
    """Write the model of the last or the best epoch; config.json beside it tells how it was made.

    Raises `CheckpointError` where that epoch's checkpoint is not there or not whole, and `StageError`
    where config.json is not the one of this run.
    """
    if json.loads(paths.config.read_bytes())["save_model"] != config.model_dump(mode="json"):
        raise StageError(
            f"{paths.config} is of another run, and would stand beside this model: "
            "run create-artifact-dir first"
        )
    checkpointer = checkpoints.FileCheckpointer(paths.checkpoint, learner.checkpoint_recorder())
    saved = checkpointer.saved()
    if not saved:
        raise CheckpointError(f"{paths.checkpoint} has no checkpoint: run fit first")
    last = checkpointer.restore(saved[-1])
    epoch = saved[-1] if config.epoch == "last" else learner.best_epoch(last)
    chosen = last if epoch == saved[-1] else checkpointer.restore(epoch)
    records.named(config.recorder).record(chosen.model, paths.model)
