"""Wrong input is reported in one message without a traceback, and the previous outputs do not change."""

import numpy as np
import pytest
from long_tests import cases, long

INVALID_PARAMS = {
    "unknown key": (
        "dropout: 0.5",
        "droput: 0.5",
        "build_learner.model.droput: unknown key. Did you mean 'dropout'?",
    ),
    "unknown section": ("load_data:", "loaddata:", "loaddata: unknown key. Did you mean 'load_data'?"),
    "wrong type": (
        "batch_size: 32",
        "batch_size: many",
        "fit.batch_size: must be an integer from 1 to 1000000000; found 'many'",
    ),
    "impossible value": (
        "learning_rate: 0.001",
        "learning_rate: -1",
        "learning_rate: must be a finite number above 0; found -1",
    ),
    "unknown kind": ("kind: adam", "kind: adm", "no optimizer is named 'adm'. Did you mean 'adam'?"),
    "unknown model": ("kind: cnn", "kind: cn", "no model is named 'cn'. Did you mean 'cnn'?"),
    "unknown metric": (
        "[loss, accuracy]",
        "[loss, acuracy]",
        "no metric is named 'acuracy'. Did you mean 'accuracy'?",
    ),
    "unknown section after a valid one": (
        "[loss, accuracy]",
        "[accuracy]\nsave_model_: 1",
        "save_model_: unknown key",
    ),
    "invalid YAML": ("load_data:", "load_data: [", "is not valid YAML"),
    "path for a source without files": (
        "path: null",
        "path: x",
        "load_data.source.path: must be null; found 'x'",
    ),
}


SHORT = {"unknown key", "impossible value", "invalid YAML", "missing file", "one class"}
"""The ids of the cases in `make test`."""


@pytest.mark.parametrize(("old", "new", "message"), cases(INVALID_PARAMS, SHORT))
def test_invalid_params_exit_with_2_and_change_nothing(finished, old, new, message):
    before = finished.files("artifacts", "data", "dvc.lock")
    finished.edit("params.yaml", old, new)

    for command in ("check", "run"):
        refused = finished.learner(command)
        assert refused.code == 2
        assert message in refused.err
        assert "Traceback" not in refused.text

    refused = finished.run("dvc", "repro")
    assert refused.code != 0
    assert "Traceback" not in refused.text
    assert finished.files("artifacts", "data", "dvc.lock") == before


def write_one_class(folder):
    np.savez(folder / "data.npz", inputs=np.zeros((10, 4)), targets=np.zeros(10, int))


def write_unequal_numbers(folder):
    np.savez(folder / "data.npz", inputs=np.zeros((10, 4)), targets=np.arange(9) % 2)


def write_one_sample(folder):
    np.savez(folder / "data.npz", inputs=np.zeros((1, 4)), targets=np.zeros(1, int))


def write_truncated_archive(folder):
    write_one_class(folder)
    path = folder / "data.npz"
    path.write_bytes(path.read_bytes()[:100])


INVALID_DATA = {
    "missing file": (lambda folder: None, "there is no file 'data.npz'"),
    "truncated archive": (write_truncated_archive, "is not a readable NumPy archive"),
    "different numbers of samples": (
        write_unequal_numbers,
        "must have the same number of samples; found 10 and 9",
    ),
    "one class": (write_one_class, "one class only"),
    "an empty split": (write_one_sample, "an empty split"),
}


@pytest.mark.parametrize(("write_data", "message"), cases(INVALID_DATA, SHORT))
def test_invalid_data_is_reported_and_previous_outputs_do_not_change(finished, write_data, message):
    write_data(finished.folder)
    before = finished.files("artifacts/model.mpk.gz", "artifacts/checkpoint", "data")
    finished.edit("params.yaml", "kind: digits\n    path: null", "kind: npz\n    path: data.npz")

    for refused in (finished.learner("run"), finished.run("dvc", "repro")):
        assert refused.code != 0
        assert message in refused.err
        assert "Traceback" not in refused.text
        assert finished.files("artifacts/model.mpk.gz", "artifacts/checkpoint", "data") == before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: cnn", 'kind: "no_such_module:Net"', "No module named 'no_such_module'"),
        long("kind: cnn", 'kind: "torch.nn:Lineer"', "Did you mean 'Linear'?"),
        long("device: auto", "device: cuda:0", "this machine has no device 'cuda:0': use one of auto"),
        ("kind: cnn", "kind: cnn\n    kernel_size: 7", "13×13 pixels or more"),
    ],
)
def test_mistake_found_by_a_later_stage_is_reported_in_one_message(finished, old, new, message):
    before = finished.files("artifacts/model.mpk.gz", "artifacts/checkpoint", "artifacts/learner", "data")
    finished.edit("params.yaml", old, new)

    refused = finished.learner("run")

    assert refused.code == 1
    assert message in refused.err
    assert "Traceback" not in refused.text
    assert (
        finished.files("artifacts/model.mpk.gz", "artifacts/checkpoint", "artifacts/learner", "data")
        == before
    )


EXHAUSTED = """
from stages.models import Mlp

class Exhausted(Mlp):
    def valid_step(self, batch):
        return next(iter(()))
"""


@pytest.mark.long
def test_stop_iteration_in_a_users_step_shows_its_frame_and_records_nothing(finished):
    (finished.folder / "exhausted.py").write_text(EXHAUSTED)
    finished.edit("params.yaml", "kind: cnn", 'kind: "exhausted:Exhausted"')
    finished.edit("params.yaml", "    dropout: 0.5\n", "")
    finished.ok("dvc", "repro", "build-learner", "create-artifact-dir")
    before = finished.files("artifacts", "data", "dvc.lock")

    for refused in (finished.run("dvc", "repro", "fit"), finished.learner("stage", "fit")):
        assert refused.code != 0
        assert "in valid_step" in refused.err
        assert "StopIteration" in refused.err
        assert finished.files("artifacts", "data", "dvc.lock") == before


def test_folder_without_a_project_is_refused(project, tmp_path):
    project.folder = tmp_path

    refused = project.learner("check", PYTHONPATH=str(tmp_path / "project"))

    assert refused.code == 2
    assert "params.yaml cannot be read" in refused.err
