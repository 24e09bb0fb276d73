"""Exports of a trained model: its weights in other formats, programs, and its card."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages import data, learner, records
from stages.contracts.errors import StageError
from stages.contracts.history import Split
from stages.inference.model_card import model_card
from stages.inference.programs import TrainedRun, export_program
from stages.learner.from_params import METRICS_FILE, list_factories
from stages.learner.run_state import history_of
from stages.params.fit_params import FitConfig
from stages.params.save_model_params import SaveModelConfig, SaveModelPaths
from stages.runs import Checkpoint
from stages.system.files import write_text

NAMES = {
    "safetensors": "model.safetensors",
    "burnpack": "model.bpk",
    "onnx": "model.onnx",
    "pt2": "model.pt2",
    "model_card": "README.md",
}
"""The name of the file of each export."""


def write_exports(
    config: SaveModelConfig, chosen: Checkpoint, resolved: Mapping[str, Any], paths: SaveModelPaths
) -> list[Path]:
    """Write the exports of *config* for the weights of *chosen*, and return their files.

    *resolved* is the content of config.json. The model and its test metrics are written before. Raises
    `StageError` if dvc.yaml lacks a path that an export needs, or if a program differs from the model.
    """
    files = {name: paths.exports / NAMES[name] for name in config.exports}
    for name in sorted(files, key=lambda name: name == "model_card"):  # it lists the others
        if name == "burnpack":
            records.BurnpackRecorder().record(chosen.model, files[name])
        elif name == "safetensors":
            records.write_state_dict(learner.state_dict_of(chosen), files[name])
        elif paths.learner is None or paths.data is None:
            raise StageError(
                f"save_model.exports: {name} needs the learner and the data. Add '${{paths.learner}}' and "
                "'${paths.data}' to the deps of save-model in dvc.yaml"
            )
        elif name == "model_card":
            others = [file for other, file in files.items() if other != name]
            _write_card(files[name], chosen, resolved, paths, [paths.model, *others])
        else:
            model, _, _ = learner.LearnerSpec.read(paths.learner).build(seed=0)
            records.load_into(model, chosen.model, source="the checkpoint")
            fit = FitConfig.model_validate(resolved["fit"])
            run = TrainedRun(model, fit, paths.data, list_factories(resolved))
            export_program(name, run, files[name], preprocess=config.preprocess)
    return list(files.values())


def _write_card(
    path: Path, chosen: Checkpoint, resolved: Mapping[str, Any], paths: SaveModelPaths, files: list[Path]
) -> None:
    """Write the card of the model and the exports in *files* to *path*."""
    values: dict[str, dict[str, float]] = {str(split): {} for split in Split}
    for value in history_of(chosen).at(chosen.trainer["epoch"]):
        values[str(value.split)][value.metric] = value.value
    if paths.test is not None:
        values["test"] = json.loads((paths.test / METRICS_FILE).read_bytes())["test"] or {}
    measured = {split: metrics for split, metrics in values.items() if metrics}
    info = data.read_info(paths.exports / data.DATASET_FILE)
    write_text(path, model_card(resolved, info, measured, files))
