"""Exports of a trained model: its weights in other formats, programs, and its card."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from stages import data, learner, records
from stages.contracts.errors import StageError
from stages.contracts.history import Split
from stages.inference.model_card import model_card
from stages.inference.programs import TrainedRun, export_program
from stages.learner.from_params import METRICS_FILE, device_kinds, list_factories
from stages.learner.run_state import describe_environment, history_of
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
    measured = _read_metrics(chosen, paths)
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
            info = data.read_info(paths.exports / data.DATASET_FILE)
            write_text(files[name], model_card(resolved, info, measured, [paths.model, *others]))
        else:
            model, _, _ = learner.LearnerSpec.read(paths.learner).build(seed=0)
            records.load_into(model, chosen.model, source="the checkpoint")
            fit = FitConfig.model_validate(resolved["fit"])
            exact = _select_exact(measured, chosen, fit, config)
            run = TrainedRun(model, fit, paths.data, list_factories(resolved), exact)
            export_program(name, run, files[name], preprocess=config.preprocess)
    return list(files.values())


def _read_metrics(chosen: Checkpoint, paths: SaveModelPaths) -> dict[str, dict[str, float]]:
    """Return the metrics that the run recorded for the weights of *chosen*, by split."""
    values: dict[str, dict[str, float]] = {str(split): {} for split in Split}
    for value in history_of(chosen).at(chosen.trainer["epoch"]):
        values[str(value.split)][value.metric] = value.value
    if paths.test is not None:
        values["test"] = json.loads((paths.test / METRICS_FILE).read_bytes())["test"] or {}
    return {split: metrics for split, metrics in values.items() if metrics}


def _select_exact(
    measured: Mapping[str, Mapping[str, float]], chosen: Checkpoint, fit: FitConfig, config: SaveModelConfig
) -> dict[str, Mapping[str, float]]:
    """Return the splits of *measured* whose metrics a program must reach.

    A CPU has measured them in float32, over all samples, with the weights that the program has.
    """
    if fit.precision != "f32" or fit.views > 1:
        return {}
    changes = (fit.limit_batches.valid, fit.overfit_batches, fit.averaging, fit.hooks, fit.compile)
    one_cpu = describe_environment(torch.device("cpu"), fit.precision)
    is_exact = {
        "test": device_kinds(fit)[0] == "cpu" and config.recorder.precision_name != "half",
        "valid": chosen.trainer.get("environment") == one_cpu
        and fit.recorder.precision_name != "half"
        and not any(changes),
    }
    return {split: metrics for split, metrics in measured.items() if is_exact.get(split)}
