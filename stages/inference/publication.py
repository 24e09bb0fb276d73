"""A folder of a trained model that the Hugging Face hub and MLflow's registry accept."""

import json
from pathlib import Path
from typing import Any

from stages import data
from stages.contracts.errors import StageError
from stages.contracts.text import to_json
from stages.inference.exports import MANIFEST, NAMES
from stages.inference.trained_model import CONFIG_FILE, EXPORTS_FOLDER, LEARNER_FOLDER
from stages.runs.file_names import SPEC_FILE
from stages.system.files import UNREADABLE, copy_file, damage, describe, write_text

PUBLISHED = "published.json"
"""The size and sha256 of each published file, by which the next call recognizes those that it may replace."""
MLMODEL = Path(__file__).with_name("MLmodel")
"""The description of a model of ONNX that MLflow reads."""
LOADED = (CONFIG_FILE, f"{LEARNER_FOLDER}/{SPEC_FILE}", f"{EXPORTS_FOLDER}/{data.DATASET_FILE}")
"""The files of an artifact directory that `load_model` needs beside the weights."""


def publish_model(artifacts: Path, target: Path) -> list[Path]:
    """Copy the exports in *artifacts*, and what `load_model` needs, to *target*, and return its files.

    Files that an earlier call has written are replaced, or removed if the run no longer has them.

    Raises `StageError`, and changes nothing, if the card or the weights are missing, if the files are not
    those of one run, or if *target* has another file of the same name.
    """
    files = _list_exports(artifacts) | {name: artifacts / name for name in LOADED}
    if NAMES["onnx"] in files:
        files[MLMODEL.name] = MLMODEL
    entries = {name: describe(file) for name, file in files.items()}
    published = _read_manifest(target / PUBLISHED)
    names = (*LOADED, *NAMES.values(), MLMODEL.name)
    present = {name: target / name for name in names if (target / name).exists()}
    for name, path in present.items():
        if all(damage(path, written.get(name, UNREADABLE)) for written in (published, entries)):
            raise StageError(
                f"{path} is not a file that `learner publish` wrote, or it was edited. Move it, or name "
                "another folder"
            )
    for name in present.keys() - entries:
        present[name].unlink()
    for name, file in files.items():
        copy_file(file, target / name)
    write_text(target / PUBLISHED, to_json({"files": entries}) + "\n")
    return [target / name for name in (*files, PUBLISHED)]


def _list_exports(artifacts: Path) -> dict[str, Path]:
    """Return the files of the exports by name, after a comparison with their manifest and with the card."""
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
    card = (exports / NAMES["model_card"]).read_text(encoding="utf-8")
    params = json.dumps(json.loads((artifacts / CONFIG_FILE).read_bytes()), indent=2)
    if params not in card or data.read_info(exports / data.DATASET_FILE).sha256 not in card:
        raise StageError(
            f"the card in {exports} has other params or data than {CONFIG_FILE} or {data.DATASET_FILE}. Run "
            "save-model"
        )
    return {name: exports / name for name in names.values()}


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return size and sha256 of each file by name; empty if *path* does not exist.

    Raises `StageError` if it is another file.
    """
    try:
        return dict(json.loads(path.read_bytes())["files"])
    except FileNotFoundError:
        return {}
    except (ValueError, LookupError, TypeError) as error:
        raise StageError(f"{path} has no list of files ({error!r}). Move it away") from error
