"""save-model: write the weights of one epoch as the model, and in the requested export formats."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stages import checkpoints, learner, records
from stages.contracts.config import Config
from stages.contracts.errors import CheckpointError, ParamsError, StageError
from stages.contracts.files import describe, write_text
from stages.contracts.text import to_json
from stages.records.config import SUFFIXES as RECORD_SUFFIXES
from stages.records.config import RecorderConfig

VERSION = "3"
SUFFIXES = {"safetensors": ".safetensors", "burnpack": ".bpk"}

MANIFEST = "manifest.json"
"""The epoch of the exported weights, and size and sha256 of each export; without exports, the only file."""


class SaveModelConfig(Config):
    """The section ``save_model``."""

    recorder: RecorderConfig = RecorderConfig()
    """Burn's format of the model: ``default`` keeps 32-bit floats, ``compact`` rounds them to 16 bits."""
    exports: tuple[Literal["safetensors", "burnpack"], ...] = ()
    """Further formats of the weights: safetensors with PyTorch's names and axes, burnpack with Burn's."""
    epoch: Literal["last", "best"] = "last"
    """``last``, or ``best``: the epoch with the lowest validation loss."""


@dataclass(frozen=True)
class SaveModelPaths:
    """The paths that the stage reads and writes."""

    checkpoint: Path
    config: Path
    model: Path
    exports: Path


def save_model(config: SaveModelConfig, paths: SaveModelPaths) -> None:
    """Write the model of the last or the best epoch, and its exports with their manifest.

    Raises `CheckpointError` if the checkpoint of that epoch is missing or corrupt, `StageError` if
    config.json is that of another run, and `ParamsError` if the model has another suffix in dvc.yaml.
    """
    if json.loads(paths.config.read_bytes())["save_model"] != config.model_dump(mode="json"):
        raise StageError(
            f"{paths.config} has another save_model section than this run, whose model it would describe. "
            "Run create-artifact-dir first"
        )
    check_suffix(config, paths.model)
    recorder = records.build_recorder(config.recorder)
    chosen = _choose_checkpoint(
        config, checkpoints.FileCheckpointer(paths.checkpoint, records.DefaultRecorder())
    )
    recorder.record(chosen.model, paths.model)
    paths.exports.mkdir(parents=True, exist_ok=True)
    files = [paths.exports / f"model{SUFFIXES[name]}" for name in config.exports]
    for name, file in zip(config.exports, files, strict=True):
        _export(name, chosen, file)
    content = {"epoch": chosen.trainer["epoch"], "files": {file.name: describe(file) for file in files}}
    write_text(paths.exports / MANIFEST, to_json(content) + "\n")


def check_suffix(config: SaveModelConfig, model: Path) -> None:
    """Raise `ParamsError` unless the name of the file *model* ends as the recorder's files do."""
    suffix = config.recorder.suffix
    if not model.name.endswith(suffix):
        raise ParamsError(
            f"save_model.recorder: {config.recorder.kind!r} writes files that end in {suffix}; found "
            f"vars.paths.model: {model} in dvc.yaml. Set that to {model.with_name(_stem(model))}{suffix}, or "
            "choose another recorder"
        )


def _stem(path: Path) -> str:
    """Return the name of *path* without a suffix that a record may have."""
    matching = [each for each in RECORD_SUFFIXES.values() if path.name.endswith(each)]
    return path.name.removesuffix(matching[0]) if matching else path.stem


def _choose_checkpoint(
    config: SaveModelConfig, checkpointer: "checkpoints.FileCheckpointer"
) -> "checkpoints.Checkpoint":
    saved = checkpointer.list_saved()
    if not saved:
        raise CheckpointError(f"{checkpointer.directory} has no checkpoint. Run fit first")
    last = checkpointer.restore(saved[-1])
    epoch = saved[-1] if config.epoch == "last" else learner.best_epoch(last)
    return last if epoch == saved[-1] else checkpointer.restore(epoch)


def _export(name: str, chosen: "checkpoints.Checkpoint", path: Path) -> None:
    if name == "burnpack":
        records.BurnpackRecorder().record(chosen.model, path)
    else:
        records.write_state_dict(learner.state_dict_of(chosen), path)
