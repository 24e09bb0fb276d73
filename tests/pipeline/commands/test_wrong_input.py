"""Wrong input is reported in one message without a traceback, and the previous outputs do not change."""

import numpy as np
import pytest
from long_tests import cases, long
from templates import finished_template

ALL_OUTPUTS = ("dvc.lock", "artifacts", "data")
LATE_OUTPUTS = ("artifacts/model.mpk.gz", "artifacts/checkpoint", "artifacts/learner", "data")
"""The outputs of the stages after create-artifact-dir, which succeeds with wrong data."""
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


@pytest.fixture(scope="module")
def finished_project(home, tmp_path_factory):
    """Return a finished project that the tests of this module share."""
    return finished_template(home).copied_to(tmp_path_factory.mktemp("wrong_input") / "project")


@pytest.fixture
def finished(finished_project):
    """Return a finished project; its params and its dvc.yaml are restored after the test."""
    before = finished_project.files("params.yaml", "dvc.yaml")
    yield finished_project
    for name, content in before.items():
        (finished_project.folder / name).write_bytes(content)


RUN = ("unknown key", "invalid YAML")
"""Mistakes with which `learner run` is called; `learner check` reads the others with the same function."""
CASES = {f"{command}-{name}": (command, name) for command in ("check", "run") for name in INVALID_PARAMS}


@pytest.mark.parametrize(
    ("command", "name"),
    cases(CASES, [each for each, (command, name) in CASES.items() if command == "check" or name in RUN]),
)
def test_invalid_params_exit_with_2_and_change_nothing(command, name, finished):
    old, new, message = INVALID_PARAMS[name]
    before = finished.files(*ALL_OUTPUTS)
    finished.edit("params.yaml", old, new)

    refused = finished.call(command)

    assert refused.code == 2
    assert message in refused.err
    assert "Traceback" not in refused.text
    assert finished.files(*ALL_OUTPUTS) == before


@pytest.mark.parametrize(
    ("name", "message"),
    [("unknown key", INVALID_PARAMS["unknown key"][2]), ("invalid YAML", "YAML file structure is corrupted")],
)
def test_dvc_repro_fails_with_invalid_params_and_changes_nothing(name, message, finished):
    before = finished.files(*ALL_OUTPUTS)
    finished.edit("params.yaml", *INVALID_PARAMS[name][:2])

    refused = finished.dvc("repro")

    assert refused.code != 0
    assert message in refused.err
    assert "Traceback" not in refused.text
    assert finished.files(*ALL_OUTPUTS) == before


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
    "missing file": (
        lambda folder: (folder / "data.npz").unlink(missing_ok=True),
        "there is no file 'data.npz'",
    ),
    "truncated archive": (write_truncated_archive, "is not a readable NumPy archive"),
    "different numbers of samples": (
        write_unequal_numbers,
        "must have the same number of samples; found 10 and 9",
    ),
    "one class": (write_one_class, "one class only"),
    "an empty split": (write_one_sample, "an empty split"),
}


# tests/data has the messages of the others.
@pytest.mark.parametrize(("write_data", "message"), cases(INVALID_DATA, ["missing file", "one class"]))
def test_invalid_data_is_reported_and_previous_outputs_do_not_change(write_data, message, finished):
    before = finished.files(*LATE_OUTPUTS)
    write_data(finished.folder)
    finished.edit("params.yaml", "kind: digits\n    path: null", "kind: npz\n    path: data.npz")
    if (finished.folder / "data.npz").exists():
        finished.add_deps()

    refused = finished.call("run")

    assert refused.code == 1
    assert message in refused.err
    assert "Traceback" not in refused.text
    assert finished.files(*LATE_OUTPUTS) == before


@pytest.mark.long  # the test before, and test_dvc_repro_fails_with_invalid_params_and_changes_nothing
def test_dvc_repro_reports_invalid_data_and_previous_outputs_do_not_change(finished):
    before = finished.files(*LATE_OUTPUTS)
    write_one_class(finished.folder)
    finished.edit("params.yaml", "kind: digits\n    path: null", "kind: npz\n    path: data.npz")
    finished.add_deps()

    refused = finished.dvc("repro")

    assert refused.code != 0
    assert "one class only" in refused.err
    assert "Traceback" not in refused.text
    assert finished.files(*LATE_OUTPUTS) == before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        long("kind: cnn", 'kind: "no_such_module:Net"', "No module named 'no_such_module'"),
        long("kind: cnn", 'kind: "torch.nn:Lineer"', "Did you mean 'Linear'?"),
        long("device: auto", "device: cuda:99", "this machine has no device 'cuda:99': use one of auto"),
        ("kind: cnn", "kind: cnn\n    kernel_size: 7", "13×13 pixels or more"),
    ],
)
def test_mistake_found_by_a_later_stage_is_reported_in_one_message(old, new, message, finished):
    before = finished.files(*LATE_OUTPUTS)
    finished.edit("params.yaml", old, new)

    refused = finished.call("run")

    assert refused.code == 1
    assert message in refused.err
    assert "Traceback" not in refused.text
    assert finished.files(*LATE_OUTPUTS) == before


def test_folder_without_a_project_is_refused(open_project, tmp_path):
    refused = open_project(tmp_path).call("check")

    assert refused.code == 2
    assert "params.yaml cannot be read" in refused.err
