"""The stage save-model writes the model and its exports."""

import json

import pytest
from ruamel.yaml import YAML

from stages.contracts.files import describe
from stages.params.save_model_params import SaveModelConfig, SaveModelPaths
from stages.save_model import save_model


def test_default_run_has_no_empty_output_directory(finished):
    stages = YAML(typ="safe").load(finished.folder / "dvc.lock")["stages"]
    outputs = [finished.folder / out["path"] for stage in stages.values() for out in stage["outs"]]

    assert [path for path in outputs if path.is_dir() and not any(path.iterdir())] == []


@pytest.mark.parametrize(
    ("exports", "names"), [((), []), (("safetensors", "burnpack"), ["model.safetensors", "model.bpk"])]
)
def test_manifest_has_size_and_hash_of_each_export(finished, tmp_path, exports, names):
    config = SaveModelConfig(exports=exports, epoch="best")
    (tmp_path / "config.json").write_text(json.dumps({"save_model": config.model_dump(mode="json")}))
    paths = (tmp_path / "config.json", tmp_path / "model.mpk.gz", tmp_path / "exports")

    save_model(config, SaveModelPaths(finished.folder / "artifacts/checkpoint", *paths))

    manifest = json.loads((tmp_path / "exports/manifest.json").read_text())
    assert manifest == {"epoch": 2, "files": {name: describe(tmp_path / "exports" / name) for name in names}}
