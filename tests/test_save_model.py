"""The stage save-model writes the model and its exports."""

import json

import numpy as np
import pytest
import torch
from long_tests import cases
from ruamel.yaml import YAML
from safetensors.torch import load_file
from small_runs import train
from torch.nn.utils import parameters_to_vector

from stages import load_model
from stages.learner import LearnerBuilder
from stages.metrics import LossMetric, Mean
from stages.models import Mlp
from stages.optim import Adam, Ema, Sgd
from stages.params.save_model_params import SaveModelConfig, SaveModelPaths
from stages.records import DefaultRecorder, load_into, read_item
from stages.records.formats import FORMATS
from stages.renderers import NoRenderer
from stages.runs.retention import KeepLast
from stages.save_model import save_model
from stages.system.files import describe


def save(checkpoint, folder, model=None, **params):
    """Save the last model of the checkpoints in *checkpoint*, and return the weights, loaded into *model*."""
    config = SaveModelConfig(exports=("safetensors",), **params)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"save_model": config.model_dump(mode="json")}))
    paths = (folder / "config.json", folder / "model.mpk.gz", folder / "exports")
    save_model(config, SaveModelPaths(checkpoint, *paths))
    model = model or Mlp((4,), 3)
    load_into(model, read_item(folder / "model.mpk.gz"))
    exported = load_file(folder / "exports/model.safetensors")
    assert all(torch.equal(each, exported[name]) for name, each in model.state_dict().items())
    return torch.cat([each.flatten() for each in model.state_dict().values()])


def test_average_is_saved_unless_the_weights_of_the_training_are_asked_for(tmp_path):
    batches = [(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(3)]
    builder = LearnerBuilder(tmp_path).with_file_checkpointer(DefaultRecorder()).renderer(NoRenderer())
    learner = builder.average_weights(Ema(decay=0.5)).devices(["cpu"]).build(Mlp((4,), 3), Adam(), 0.1)
    learner.fit(batches, batches)
    raw = parameters_to_vector(learner.model.parameters()).detach()
    with learner.apply_average():
        averaged = parameters_to_vector(learner.model.parameters()).detach()

    checkpoint = tmp_path / "checkpoint"
    assert torch.equal(save(checkpoint, tmp_path / "default"), averaged)
    assert torch.equal(save(checkpoint, tmp_path / "averaged", weights="averaged"), averaged)
    assert torch.equal(save(checkpoint, tmp_path / "raw", weights="raw"), raw)
    assert not torch.equal(raw, averaged)


@pytest.mark.parametrize("weights", ["averaged", "raw"])
def test_model_in_double_precision_has_all_bits_of_float64_weights(weights, tmp_path):
    """The record of a checkpoint has float32 by default."""
    batches = [(torch.randn(8, 4, dtype=torch.float64), torch.arange(8) % 3)]
    builder = LearnerBuilder(tmp_path).with_file_checkpointer(DefaultRecorder()).renderer(NoRenderer())
    learner = builder.devices(["cpu"]).build(Mlp((4,), 3).double(), Adam(), 0.1)
    learner.fit(batches, batches)

    recorder = {"kind": "default", "precision": "double"}
    saved = save(
        tmp_path / "checkpoint", tmp_path / "saved", Mlp((4,), 3).double(), weights=weights, recorder=recorder
    )

    assert torch.equal(saved, parameters_to_vector(learner.model.parameters()).detach())


@pytest.mark.parametrize(("best", "epoch"), [(None, 3), ({"metric": "Accuracy", "direction": "highest"}, 1)])
def test_best_epoch_is_that_of_the_configured_metric(best, epoch, tmp_path):
    """The accuracy is best in the first epoch, and the loss in the last; only two records of it are read."""
    model = Mlp((4,), 3)
    builder = LearnerBuilder(tmp_path).with_file_checkpointer(DefaultRecorder()).renderer(NoRenderer())
    builder.with_checkpointing_strategy(KeepLast(3)).num_epochs(3).devices(["cpu"])
    learner = builder.metrics(LossMetric(), Falling()).build(model, Sgd(), 0.1)
    x, y = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3
    learner.fit([(x, y)], [(x, y)])
    for path in (tmp_path / "checkpoint").iterdir():
        if path.name not in (f"model-{epoch}.mpk.gz", f"trainer-{epoch}.mpk.gz", "trainer-3.mpk.gz"):
            path.unlink()  # nothing reads it

    save(tmp_path / "checkpoint", tmp_path / "out", epoch="best", best=best)

    assert json.loads((tmp_path / "out/exports/manifest.json").read_bytes())["epoch"] == epoch


class Falling:
    """An accuracy that falls with each epoch."""

    name, unit, better = "Accuracy", None, None

    def measure_step(self, step):
        return Mean(1.0 / step.epoch, 1)


CHECKPOINTS = ("named_mpk", "bin", "burnpack")
PAIRS = {
    f"{checkpoint}-{recorder}": (checkpoint, recorder) for checkpoint in CHECKPOINTS for recorder in FORMATS
}
"""Each format of checkpoints with each format of models; a pair for each format of models is not long."""


@pytest.mark.parametrize(
    ("checkpoint", "recorder"),
    cases(PAIRS, [f"{CHECKPOINTS[i % 3]}-{recorder}" for i, recorder in enumerate(FORMATS)]),
)
def test_model_in_each_format_is_that_of_a_checkpoint_in_each_format(tmp_path, checkpoint, recorder):
    inputs = np.random.default_rng(1).random((40, 3))
    np.savez(tmp_path / "data.npz", inputs=inputs, targets=np.arange(40) % 2)
    source = {"kind": "npz", "path": str(tmp_path / "data.npz")}

    directory = train(tmp_path, source, recorder, recorder=checkpoint)

    weights = load_file(directory / "exports/model.safetensors")
    loaded = load_model(directory).model.state_dict()
    assert {name: value.tolist() for name, value in loaded.items()} == {
        name: weights[name].tolist() for name in loaded
    }


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


@pytest.fixture
def tested(finished):
    """Return a project whose data has a test split, and whose five stages have run."""
    finished.edit("params.yaml", "valid_fraction: 0.8", "valid_fraction: 0.8\n  test_fraction: 0.1")
    finished.edit("params.yaml", "num_epochs: 2", "num_epochs: 1")
    finished.edit("params.yaml", "[loss, accuracy]", "[loss, accuracy, learning_rate, cpu_use]")
    finished.call("run").ok()
    return finished


def test_metrics_of_the_test_split_are_those_of_evaluate_in_dvc_metrics(tested):
    file = "artifacts/test/split/metrics.json"

    shown = json.loads(tested.dvc("metrics", "show", "--json").out)[""]["data"][file]["data"]
    tested.call("evaluate", "--source", "test").ok()

    rows = json.loads(tested.call("summary", "--json").out)["data"]["metrics"]
    evaluated = {row["metric"]: row["min"] for row in rows if row["split"] == "Test (test)"}
    assert shown["test"] == {name: evaluated[name] for name in ("Accuracy", "Loss")}
    assert sorted(tested.files("artifacts/test/split")) == [
        f"artifacts/test/split/{name}" for name in ("Accuracy.log", "Loss.log", "metrics.json")
    ]
    assert "up to date" in tested.dvc("status").ok()


def test_project_without_the_entry_of_the_test_split_still_runs(finished, tmp_path):
    """A dvc.yaml of an older project has no such entry; the test split then has no effect but a warning."""
    for line in (
        "      test: artifacts/test/split\n",
        "      - ${paths.test}\n",
        "  - ${paths.test}/metrics.json\n",
    ):
        finished.edit("dvc.yaml", line, "")

    finished.call("run").ok()
    finished.edit("params.yaml", "valid_fraction: 0.8", "valid_fraction: 0.8\n  test_fraction: 0.1")
    refused = finished.call("check")

    assert refused.code == 2
    assert "Add 'test: artifacts/test/split' to vars.paths, '${paths.learner}' and" in refused.err
