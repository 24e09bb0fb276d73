"""`learner publish` copies the exports of the workspace or of a revision, and makes none itself."""

import json

import pytest

EXPORTS = "artifacts/exports"


@pytest.mark.parametrize("revision", [[], ["--rev", "HEAD"]])
def test_missing_export_is_refused_with_the_param_to_set(finished, revision):
    done = finished.call("publish", "hub", *revision)

    assert done.code == 1
    assert done.err == (
        "error: publish needs the exports model_card and safetensors; found []. Set save_model.exports: "
        "[model_card, safetensors] in params.yaml, and run save-model\n"
    )
    assert not (finished.folder / "hub").exists()


def test_folder_of_outputs_is_refused(finished):
    done = finished.call("publish", EXPORTS)

    assert done.code == 2
    assert done.err.startswith(f"error: {EXPORTS} is in artifacts, whose files DVC tracks. Name another")


@pytest.mark.long  # tests/inference/test_publication.py calls the function of the command
def test_workspace_and_revision_have_their_own_exports(finished):
    finished.edit("params.yaml", "exports: []", "exports: [safetensors, model_card]")
    finished.call("run").ok()
    finished.ok("git", "commit", "-qam", "two epochs")
    before = (finished.folder / EXPORTS / "model.safetensors").read_bytes()
    finished.call("run", "-S", "fit.num_epochs=3").ok()
    after = (finished.folder / EXPORTS / "model.safetensors").read_bytes()

    printed = finished.call("publish", "workspace").ok()
    done = json.loads(finished.call("publish", "revision", "--rev", "HEAD", "--json").ok())

    assert printed == (
        "wrote workspace: 6 files for the Hugging Face hub only; MLflow needs save_model.exports: [onnx]\n"
    )
    assert "revision/README.md" in done["data"]["files"]
    weights = [finished.folder / name / "model.safetensors" for name in ("revision", "workspace")]
    assert [path.read_bytes() for path in weights] == [before, after]
    assert before != after
