"""A folder of a trained model that the Hugging Face hub and MLflow's registry accept."""

import json
import os
from pathlib import Path

from stages import data, learner
from stages.contracts.errors import StageError
from stages.contracts.text import to_json
from stages.inference.exports import NAMES
from stages.inference.trained_model import (
    CONFIG_FILE,
    EXPORTS_FOLDER,
    LEARNER_FOLDER,
    MANIFEST,
    read_config,
)
from stages.runs.file_names import SPEC_FILE
from stages.runs.manifest import Manifest, check_manifest
from stages.system.files import UNREADABLE, copy_file, damage, describe, read_regular, write_text

PUBLISHED = "published.json"
"""The size and sha256 of each published file, by which the next call recognizes those that it may replace."""
MLMODEL = Path(__file__).with_name("MLmodel")
"""The description of a model of ONNX that MLflow reads."""
LOADED = (f"{LEARNER_FOLDER}/{SPEC_FILE}", f"{EXPORTS_FOLDER}/{data.DATASET_FILE}", CONFIG_FILE)
"""The files of an artifact directory that `load_model` needs beside the weights; the last is copied last."""


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
