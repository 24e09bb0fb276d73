"""A published model has the files that the hub and MLflow's registry accept, and replaces no others."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import CommitOperationAdd, ModelCardData, metadata_load
from killed_processes import killed_before
from long_tests import long
from mlflow_servers import serve
from pages import page
from safetensors.torch import load_file, save_file
from small_runs import train

from stages import load_model
from stages.contracts.errors import CheckpointError, StageError
from stages.inference import publish_model
from stages.system.files import describe

INPUTS = np.random.default_rng(1).normal(5, 3, (60, 3)).astype(np.float32)
CARD_AND_WEIGHTS = ["model_card", "safetensors"]
LOADED = ["config.json", "exports/dataset.json", "learner/learner.json"]


def train_on_numbers(folder, exports):
    """Return the artifact directory of a run with *exports*."""
    np.savez(folder / "data.npz", inputs=INPUTS, targets=np.arange(60) % 3)
    source = {"kind": "npz", "path": str(folder / "data.npz")}
    return train(folder, source, save_options={"exports": exports, "license": "mit", "preprocess": True})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the artifact directory of a run with a card and weights, which the tests copy."""
    return train_on_numbers(tmp_path_factory.mktemp("run"), CARD_AND_WEIGHTS)


@pytest.fixture
def artifacts(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "artifacts")


def edit_manifest(artifacts, **files):
    """Set entries of the manifest of save-model; None removes one."""
    path = artifacts / "exports/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"] = {
        name: entry for name, entry in (manifest["files"] | files).items() if entry is not None
    }
    path.write_text(json.dumps(manifest))


def add_program(artifacts):
    """Add a file in the place of an ONNX export, which is only copied."""
    path = artifacts / "exports/model.onnx"
    path.write_bytes(b"a program")
    edit_manifest(artifacts, **{path.name: describe(path)})


def read_files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_folder_has_the_card_the_weights_and_what_load_model_needs(artifacts, tmp_path):
    written = publish_model(artifacts, tmp_path / "hub")

    files = read_files(tmp_path / "hub")
    assert sorted(files) == sorted([*LOADED, "README.md", "model.safetensors", "published.json"])
    assert sorted(path.relative_to(tmp_path / "hub").as_posix() for path in written) == sorted(files)
    expected = load_model(artifacts)(INPUTS)
    assert torch.equal(load_model(tmp_path / "hub/model.safetensors")(INPUTS), expected)


def test_hub_library_accepts_the_files_and_reads_the_card_and_the_weights(artifacts, tmp_path):
    for path in publish_model(artifacts, tmp_path):
        CommitOperationAdd(str(path.relative_to(tmp_path)), path)  # raises if the hub refuses the name

    card = ModelCardData(**metadata_load(tmp_path / "README.md"), ignore_metadata_errors=False)
    assert (card.license, card.library_name, card.model_name) == ("mit", "pytorch", "mlp")
    weights = load_file(tmp_path / "model.safetensors")
    state = load_model(artifacts).model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in state.items())


def test_program_of_onnx_comes_with_the_description_that_mlflow_reads(artifacts, tmp_path):
    add_program(artifacts)
    publish_model(artifacts, tmp_path / "hub")

    flavors = yaml.safe_load((tmp_path / "hub/MLmodel").read_text())["flavors"]
    assert (tmp_path / "hub" / flavors["onnx"]["data"]).read_bytes() == b"a program"


def test_bytes_are_equal_again_and_in_another_folder(artifacts, tmp_path):
    add_program(artifacts)
    for name in ("first", "second", "second"):
        publish_model(artifacts, tmp_path / name)

    assert read_files(tmp_path / "first") == read_files(tmp_path / "second")


def test_next_model_replaces_the_files_of_the_previous_one_and_keeps_others(artifacts, tmp_path):
    hub = tmp_path / "hub"
    add_program(artifacts)
    publish_model(artifacts, hub)
    (hub / ".gitattributes").write_text("mine")
    edit_manifest(artifacts, **{"model.onnx": None})

    publish_model(artifacts, hub)

    assert sorted(read_files(hub)) == sorted(
        [*LOADED, ".gitattributes", "README.md", "model.safetensors", "published.json"]
    )


@pytest.mark.parametrize("name", ["README.md", "config.json", "MLmodel", "published.json"])
def test_file_of_the_user_is_not_replaced(artifacts, tmp_path, name):
    path = tmp_path / "hub" / name
    path.parent.mkdir()
    path.write_text("mine")

    with pytest.raises(StageError, match=rf"{name} (is not|has no).* Move it"):
        publish_model(artifacts, tmp_path / "hub")

    assert read_files(tmp_path / "hub") == {name: b"mine"}


def test_edit_of_a_published_file_is_kept(artifacts, tmp_path):
    publish_model(artifacts, tmp_path / "hub")
    (tmp_path / "hub/README.md").write_text("edited")

    with pytest.raises(StageError, match="or it was edited"):
        publish_model(artifacts, tmp_path / "hub")


def make_other_model(artifacts, folder):
    """Return a copy of *artifacts* with other weights and another normalization."""
    other = shutil.copytree(artifacts, folder)
    weights = other / "exports/model.safetensors"
    save_file({name: value + 1 for name, value in load_file(weights).items()}, weights)
    edit_manifest(other, **{weights.name: describe(weights)})
    path = other / "exports/dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalization": {"mean": 3.0, "std": 2.0}}))
    return other


@pytest.mark.parametrize("every", [long(1), 11])
def test_killed_call_leaves_one_model_or_none_and_any_next_call_completes(artifacts, tmp_path, every):
    other, hub = make_other_model(artifacts, tmp_path / "other"), tmp_path / "hub"
    publish_model(artifacts, tmp_path / "published")
    expected = [load_model(folder / "exports/model.safetensors")(INPUTS) for folder in (artifacts, other)]
    states = set()

    for number in range(0, 1000, every):
        shutil.rmtree(hub, ignore_errors=True)
        shutil.copytree(tmp_path / "published", hub)
        killed = killed_before(number, lambda: publish_model(other, hub))
        try:
            outputs = load_model(hub / "model.safetensors")(INPUTS)
            states.add([torch.equal(outputs, model) for model in expected].index(True))
        except CheckpointError:
            states.add("refused")
        publish_model(artifacts, hub)
        assert read_files(hub) == read_files(tmp_path / "published")
        if not killed:
            break

    assert number > 30
    assert states == {0, 1, "refused"}


def link_to(target):
    def change(path):
        path.unlink()
        path.symlink_to(target)

    return change


def write_nonsense(path):
    path.write_text("[1]")


def make_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", [*LOADED, "exports/manifest.json"])
@pytest.mark.parametrize(
    "change", [link_to("/etc/passwd"), link_to("/dev/zero"), make_pipe, write_nonsense, Path.unlink]
)
def test_file_of_a_stranger_that_is_not_one_of_a_run_is_not_published(artifacts, tmp_path, name, change):
    change(artifacts / name)

    with pytest.raises(
        StageError, match="cannot be read|is invalid|has no list|was not written|needs the exports"
    ):
        publish_model(artifacts, tmp_path / "hub")

    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("hub", Path.touch),
        ("hub", lambda path: path.symlink_to("missing")),
        ("hub/exports", Path.touch),
        ("hub/exports", lambda path: path.symlink_to(path.parent.parent)),
    ],
)
def test_file_or_link_in_place_of_a_folder_is_refused(artifacts, tmp_path, name, make):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    make(tmp_path / name)

    with pytest.raises(StageError, match=f"{name} is a file or a link. Move it"):
        publish_model(artifacts, tmp_path / "hub")

    assert [path.name for path in (tmp_path / "hub").rglob("*")] in ([], ["exports"])


def remove_card(artifacts):
    edit_manifest(artifacts, **{"README.md": None})


def remove_manifest(artifacts):
    (artifacts / "exports/manifest.json").unlink()


def change_weights(artifacts):
    (artifacts / "exports/model.safetensors").write_bytes(b"x")


def change_params(artifacts):
    path = artifacts / "config.json"
    path.write_text(path.read_text().replace('"batch_size": 7', '"batch_size": 8'))


def change_data(artifacts):
    path = artifacts / "exports/dataset.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps(info | {"sha256": "0" * 64}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove_card, r"found \[safetensors\]. Set save_model.exports: \[model_card, safetensors\]"),
        (remove_manifest, r"found \[\]. Set save_model.exports: \[model_card, safetensors\]"),
        (change_weights, "model.safetensors has 1 bytes, but .* Run save-model"),
        (change_params, "the card in .* has other params or data than config.json"),
        (change_data, "the card in .* has other params or data than config.json or dataset.json"),
    ],
)
def test_files_that_are_not_those_of_one_run_are_refused(artifacts, tmp_path, change, message):
    change(artifacts)

    with pytest.raises(StageError, match=message):
        publish_model(artifacts, tmp_path / "hub")

    assert not (tmp_path / "hub").exists()


@pytest.mark.long  # `test_program_of_onnx_comes_with_the_description_that_mlflow_reads`
def test_registry_of_mlflow_has_the_model_with_its_outputs(tmp_path, monkeypatch):
    import mlflow
    import onnxruntime

    artifacts = train_on_numbers(tmp_path, [*CARD_AND_WEIGHTS, "onnx"])
    publish_model(artifacts, tmp_path / "published")
    [program] = [text for text in page("stages/inference/README.md").blocks("python") if "mlflow" in text]
    (tmp_path / "server").mkdir()

    with serve(tmp_path / "server") as uri, monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        patch.chdir(tmp_path)
        exec(program, {})  # noqa: S102  that of the page, which registers the folder
        registered = mlflow.onnx.load_model("models:/digits/1")
        predictor = mlflow.pyfunc.load_model("models:/digits/1")

    expected = load_model(artifacts)(INPUTS).detach().numpy()
    session = onnxruntime.InferenceSession(registered.SerializeToString())
    [outputs] = session.run(None, {session.get_inputs()[0].name: INPUTS})
    np.testing.assert_allclose(outputs, expected, atol=1e-4)
    [predicted] = predictor.predict(INPUTS).values()
    np.testing.assert_allclose(predicted, expected, atol=1e-4)
