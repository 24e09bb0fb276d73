"""Numbers that each stage computes, which may change only if its VERSION is raised.

They are rounded, so that the last bits of another processor do not matter.
"""

import json

import pytest

from stages import build_learner, create_artifact_dir, fit, load_data, save_model
from stages.records import from_plain, read_item, state_of


def layout_entries(folder):
    return dict.fromkeys(json.loads((folder / "artifacts/layout.json").read_text())["entries"], 1)


def data_hash(folder):
    return {json.loads((folder / "data/prepared/dataset.json").read_text())["sha256"]: 1}


def weight_norms(name, trainer):
    """Return a function that computes the norms of the weights in a record, with the layout in *trainer*."""

    def norms(folder):
        layout = from_plain(read_item(folder / trainer)["layout"], trainer)
        read = state_of(read_item(folder / name), layout, name)
        assert read.fits
        return {key: tensor.norm().item() for key, tensor in read.state.items()}

    return norms


def final_metrics(folder):
    metrics = json.loads((folder / "artifacts/metrics.json").read_text())
    return {
        f"{split} {name}": value for split in ("train", "valid") for name, value in metrics[split].items()
    }


START = "artifacts/learner/checkpoint/{}-0.mpk.gz"
FOLDERS = ("checkpoint", "exports", "learner", "plots", "telemetry", "test", "train", "valid")
STORED = {
    create_artifact_dir: (
        layout_entries,
        "7",
        dict.fromkeys(
            ("config.json", "layout.json", "metrics.json", "model.mpk.gz", *FOLDERS, "experiment.log"), 1
        ),
    ),
    load_data: (data_hash, "5", {"b0c9373ef121f53289ec75b377bcc6ba2786e339015ba78f68c7991fccf8b529": 1}),
    build_learner: (
        weight_norms(START.format("model"), START.format("trainer")),
        "7",
        {
            "conv1.weight": 1.6,
            "conv1.bias": 0.55,
            "conv2.weight": 2.26,
            "conv2.bias": 0.23,
            "linear1.weight": 3.26,
            "linear1.bias": 0.11,
            "linear2.weight": 1.81,
            "linear2.bias": 0.37,
        },
    ),
    fit: (
        final_metrics,
        "13",
        {"train Accuracy": 18.66, "train Loss": 2.195, "valid Accuracy": 50.49, "valid Loss": 2.084},
    ),
    save_model: (
        weight_norms("artifacts/model.mpk.gz", START.format("trainer")),
        "6",
        {
            "conv1.weight": 1.6,
            "conv1.bias": 0.54,
            "conv2.weight": 2.27,
            "conv2.bias": 0.21,
            "linear1.weight": 3.42,
            "linear1.bias": 0.12,
            "linear2.weight": 1.8,
            "linear2.bias": 0.37,
        },
    ),
}


@pytest.fixture(scope="module")
def results(_finished):
    """Return the folder of the finished project, which these tests only read."""
    return _finished.folder


@pytest.mark.parametrize("stage", STORED, ids=lambda stage: stage.__name__)
def test_numbers_change_only_with_the_version(stage, results):
    measure, version, numbers = STORED[stage]

    assert version == stage.VERSION
    assert measure(results) == pytest.approx(numbers, abs=0.006, rel=0.004)
