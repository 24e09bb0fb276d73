"""Training without a valid split."""

import json

import numpy as np
import pytest
import torch
from stage_runs import load, read_outputs, train

from stages import data
from stages.build_learner import build_learner
from stages.contracts.errors import BuilderError
from stages.contracts.history import Split
from stages.fit import fit
from stages.learner import LearnerBuilder
from stages.learner.run_state import best_epoch
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data
from stages.metrics import LossMetric
from stages.models import Mlp
from stages.optim import Adam
from stages.params.build_learner_params import BuildLearnerConfig, BuildLearnerPaths
from stages.params.fit_params import FitConfig, FitPaths
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import PlainRenderer
from stages.runs import MetricEarlyStopping
from stages.runs.retention import KeepBest

BATCHES = [(torch.arange(8.0).reshape(2, 4), torch.tensor([0, 1]))] * 3


def build(directory, change=lambda builder: builder, optimizer=None, lr=0.1):
    torch.manual_seed(1)
    builder = LearnerBuilder(directory).metrics(LossMetric()).num_epochs(4).seed(1).devices(["cpu"])
    builder.renderer(PlainRenderer()).with_file_checkpointer(NamedMpkGzFileRecorder())
    model = Mlp((4,), 2)
    return change(builder).build(model, optimizer(model) if optimizer else Adam(), lr)


def test_run_without_validation_keeps_the_last_checkpoints_and_the_last_is_the_best(tmp_path):
    learner = build(tmp_path)
    learner.fit(BATCHES)

    assert {split for split, _ in learner.history.columns()} == {Split.TRAIN}
    assert sorted(path.name for path in (tmp_path / "checkpoint").glob("model-*")) == [
        "model-3.mpk.gz",
        "model-4.mpk.gz",
    ]
    last = learner.components.checkpoints.epochs.restore(4)
    assert best_epoch(last) == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda builder: builder.early_stopping(MetricEarlyStopping(n_epochs=1)),
        lambda builder: builder.with_checkpointing_strategy(
            KeepBest(split=Split.VALID, metric="Loss", direction="highest")
        ),
    ],
)
def test_rule_for_a_metric_of_the_valid_split_is_refused_without_validation(tmp_path, change):
    learner = build(tmp_path, change)

    with pytest.raises(BuilderError, match="uses the valid 'Loss', but the run has no validation. Pass"):
        learner.fit(BATCHES)


def test_plateau_of_a_metric_of_the_valid_split_is_refused_without_validation(tmp_path):
    model = Mlp((4,), 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    learner = LearnerBuilder(tmp_path).metrics(LossMetric()).devices(["cpu"]).build(model, optimizer, plateau)

    with pytest.raises(BuilderError, match="ReduceLROnPlateau uses the valid 'Loss'"):
        learner.fit(BATCHES)


def test_stages_train_on_data_without_a_valid_split(tmp_path):
    np.savez(
        tmp_path / "data.npz", inputs=np.random.default_rng(0).normal(size=(40, 4)), targets=np.arange(40) % 3
    )
    source = {"kind": "npz", "path": str(tmp_path / "data.npz")}
    load_data(
        LoadDataConfig.model_validate({"source": source, "valid_fraction": 0}),
        LoadDataPaths(tmp_path / "data"),
    )
    config = BuildLearnerConfig.model_validate({"model": {"kind": "mlp"}})
    build_learner(config, BuildLearnerPaths(tmp_path / "data/dataset.json", tmp_path / "learner"))

    names = (
        "checkpoint",
        "train",
        "valid",
        "metrics.json",
        "plots",
        "plots/iterations",
        "plots/confusion.tsv",
    )
    places = [tmp_path / "artifacts" / name for name in names]
    inputs = (tmp_path / "artifacts", tmp_path / "learner", tmp_path / "data")
    fit(FitConfig(num_epochs=2, device="cpu", num_workers=0), FitPaths(*inputs, *places, tmp_path / "runs"))

    assert data.read(tmp_path / "data").valid is None
    assert [path.name for path in (tmp_path / "artifacts/valid").iterdir()] == ["no-validation.txt"]
    metrics = json.loads((tmp_path / "artifacts/metrics.json").read_text())
    assert (metrics["epoch"], set(metrics["train"]), metrics["valid"]) == (2, {"Accuracy", "Loss"}, {})
    assert not [
        path for path in (tmp_path / "artifacts").rglob("*") if path.is_dir() and not any(path.iterdir())
    ]


def test_run_of_more_epochs_has_the_outputs_of_one_that_had_them_at_once(tmp_path):
    """The first two epochs have no validation, and the third has one."""
    np.savez(tmp_path / "data.npz", inputs=np.eye(12, 4, dtype=np.float32), targets=np.arange(12) % 3)
    for folder in ("longer", "whole"):
        load(tmp_path / folder, {"kind": "npz", "path": str(tmp_path / "data.npz")})
    params = {"model": {"kind": "mlp"}, "validate_every": 3}

    train(tmp_path / "longer", num_epochs=2, **params)
    longer = train(tmp_path / "longer", num_epochs=3, **params)

    assert read_outputs(longer) == read_outputs(train(tmp_path / "whole", num_epochs=3, **params))
