"""Exports of a trained model: weights in other formats, programs, a card, and a folder to publish them.

The card is Markdown with the metadata of the Hugging Face hub, which accepts the folder, as MLflow's registry
does.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from stages import data, learner, records
from stages.contracts.errors import StageError
from stages.contracts.history import Split
from stages.contracts.text import to_json
from stages.data import DatasetInfo
from stages.inference.programs import TrainedRun, export_program
from stages.inference.trained_model import (
    CONFIG_FILE,
    EXPORTS_FOLDER,
    LEARNER_FOLDER,
    MANIFEST,
    read_config,
)
from stages.learner.from_params import METRICS_FILE, device_kinds, list_factories
from stages.learner.run_state import describe_environment, history_of
from stages.params.fit_params import FitConfig
from stages.params.save_model_params import SaveModelConfig, SaveModelPaths
from stages.runs import Checkpoint
from stages.runs.file_names import SPEC_FILE
from stages.runs.manifest import Manifest, check_manifest
from stages.system.files import UNREADABLE, copy_file, damage, describe, read_regular, write_text

NAMES = {
    "safetensors": "model.safetensors",
    "burnpack": "model.bpk",
    "onnx": "model.onnx",
    "pt2": "model.pt2",
    "model_card": "README.md",
}
"""The name of the file of each export."""
PUBLISHED = "published.json"
"""The size and sha256 of each published file, by which the next call recognizes those that it may replace."""
MLMODEL = Path(__file__).with_name("MLmodel")
"""The description of a model of ONNX that MLflow reads."""
LOADED = (f"{LEARNER_FOLDER}/{SPEC_FILE}", f"{EXPORTS_FOLDER}/{data.DATASET_FILE}", CONFIG_FILE)
"""The files of an artifact directory that `load_model` needs beside the weights; the last is copied last."""
_CARD = """---
{metadata}
---

# {name}

A {name} of PyTorch for {task}, trained with learner-pipeline and torch {torch}.

| split | samples | {titles} |
|---|---|{rule}|
{rows}

## Data

| inputs | |
|---|---|
| shape | `{info[input_shape]}` |
| dtype | `{info[input_dtype]}` |
| normalization, `(x - mean) / std` | `{info[normalization]}` |
| classes | `{info[num_classes]}` |
| SHA-256 of the prepared data | `{data}` |

## Files

| file | bytes | SHA-256 |
|---|---|---|
{files}

## Params

```json
{params}
```
"""

_TASKS = ("image-classification", "tabular-classification", "tabular-regression", "text-classification")
"""Tasks of the hub."""


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


def model_card(
    resolved: Mapping[str, Any],
    info: DatasetInfo,
    values: Mapping[str, Mapping[str, float]],
    files: list[Path],
) -> str:
    """Return the card of the model in *files*.

    *resolved* is the content of config.json, with the license in ``save_model.license``; *info* describes the
    data; *values* has the metrics of the saved epoch by the name of their split.

    The commit is not on the card: that of the results contains it.
    """
    kind = str(resolved["build_learner"]["model"]["kind"]).rpartition(":")[2]
    names = sorted({name for metrics in values.values() for name in metrics})
    task = _find_task(info)
    entry = {
        "license": resolved["save_model"].get("license"),
        "library_name": "pytorch",
        "pipeline_tag": task,
        "tags": ["learner-pipeline", info.task],
        "model-index": [{"name": kind, "results": _results(task or info.task, values)}],
    }
    described = {file.name: describe(file) for file in files}
    return _CARD.format(
        metadata="\n".join(f"{name}: {json.dumps(value)}" for name, value in entry.items() if value),
        name=kind,
        task=(task or info.task).replace("-", " "),
        torch=torch.__version__.partition("+")[0],
        titles=" | ".join(names),
        rule="|".join("---" for _ in names),
        rows="\n".join(
            _row(split, count, values.get(split, {}), names) for split, count in info.counts.items()
        ),
        info={name: json.dumps(value) for name, value in info.model_dump(mode="json").items()},
        data=info.sha256,
        files="\n".join(
            f"| {name} | {file['size']} | `{file['sha256']}` |" for name, file in described.items()
        ),
        params=json.dumps(resolved, indent=2),
    )


def _find_task(info: DatasetInfo) -> str | None:
    """Return the name that the hub has for the task; None if it has none."""
    subject = "tabular" if info.feature_names else "text"
    if not (info.feature_names or info.tokenizer):
        subject = ""
    shape = info.input_shape
    if not isinstance(shape, dict) and len(shape) == 3 and shape[0] in (1, 3):
        subject = "image"
    task = f"{subject}-{info.task}"
    return task if task in _TASKS else None


def _row(split: str, count: int, values: Mapping[str, float], names: list[str]) -> str:
    cells = (f"{values[name]:.6g}" if name in values else "" for name in names)
    return f"| {split} | {count} | {' | '.join(cells)} |"


def _results(task: str, values: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return the metrics in the form of the hub, which has no value for NaN and infinity."""
    return [
        {
            "task": {"type": task},
            "dataset": {"name": f"the {split} split", "type": "private", "split": split},
            "metrics": [
                {"type": name.lower(), "name": name, "value": value}
                for name, value in metrics.items()
                if math.isfinite(value)
            ],
        }
        for split, metrics in values.items()
    ]


def publish_model(artifacts: Path, target: Path) -> list[Path]:
    """Copy the exports in *artifacts*, and what `load_model` needs, to *target*, and return its files.

    Files that an earlier call has written are replaced, or removed if the run no longer has them. If the
    process is killed, `load_model` refuses *target* until the next call, which may be for another model.

    Raises `StageError`, and changes nothing, if the card or the weights are missing, if the files are not
    those of one run, or if *target* has another file of the same name.
    """
    sources = _list_exports(artifacts)
    if NAMES["onnx"] in sources:
        sources[MLMODEL.name] = MLMODEL
    sources |= {name: artifacts / name for name in LOADED}
    entries = {name: describe(file) for name, file in sources.items()}
    outdated = _list_outdated(target, entries)
    if outdated or not all((target / name).exists() for name in entries):
        for name in (CONFIG_FILE, *outdated):
            (target / name).unlink(missing_ok=True)
    write_text(target / PUBLISHED, to_json({"files": entries}) + "\n")
    for name, source in sources.items():
        if not (target / name).exists():
            copy_file(source, target / name)
    return [target / name for name in (*entries, PUBLISHED)]


def _list_outdated(target: Path, entries: Manifest) -> list[str]:
    """Return the names of the published files in *target* that are not those of *entries*.

    Raises `StageError` if one of them is not as `publish_model` wrote it, or if a link leads out of *target*.
    """
    names = (*LOADED, *NAMES.values(), MLMODEL.name)
    for folder in {target, *((target / name).parent for name in names)}:
        leads_out = folder != target and folder.is_symlink()
        if leads_out or (os.path.lexists(folder) and not folder.is_dir()):
            raise StageError(f"{folder} is a file or a link. Move it, or name another folder")
    published = _read_manifest(target / PUBLISHED)
    outdated = []
    for name in filter(lambda name: os.path.lexists(target / name), names):
        if damage(target / name, entries.get(name, UNREADABLE)) is None:
            continue
        if damage(target / name, published.get(name, UNREADABLE)):
            raise StageError(
                f"{target / name} is not a file that `learner publish` wrote, or it was edited. Move it, or "
                "name another folder"
            )
        outdated.append(name)
    return outdated


def _list_exports(artifacts: Path) -> dict[str, Path]:
    """Return the files of the exports by name, after a comparison with their manifest and with the card.

    The other files that are published are read, so that none of them is a link to a file of another kind.
    """
    exports = artifacts / EXPORTS_FOLDER
    manifest = _read_manifest(exports / MANIFEST)
    names = {export: name for export, name in NAMES.items() if name in manifest}
    needed = sorted({*names, "model_card", "safetensors"})
    if len(needed) > len(names):
        raise StageError(
            f"publish needs the exports model_card and safetensors; found [{', '.join(names)}]. Set "
            f"save_model.exports: [{', '.join(needed)}] in params.yaml, and run save-model"
        )
    for name in names.values():
        if problem := damage(exports / name, manifest[name]):
            raise StageError(f"{exports / name} {problem}. Run save-model")
    learner.LearnerSpec.read(artifacts / LEARNER_FOLDER)
    read_config(artifacts)
    card = (exports / NAMES["model_card"]).read_bytes()
    params = json.dumps(json.loads(read_regular(artifacts / CONFIG_FILE)), indent=2)
    described = (params, data.read_info(exports / data.DATASET_FILE).sha256)
    if any(text.encode() not in card for text in described):
        raise StageError(
            f"the card in {exports} has other params or data than {CONFIG_FILE} or {data.DATASET_FILE}. Run "
            "save-model"
        )
    return {name: exports / name for name in names.values()}


def _read_manifest(path: Path) -> Manifest:
    """Return size and sha256 of each file by name; empty if *path* does not exist.

    Raises `StageError` if it is another file.
    """
    try:
        return check_manifest(json.loads(read_regular(path))["files"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StageError(f"{path} has no list of files ({error!r}). Move it away") from error
