"""Folds of samples with several inputs and targets, from the command to the table."""

import json
import re
import statistics

import numpy as np
import pytest

MODEL = """\
import torch
import torch.nn.functional as F
from torch import nn

from stages.contracts.outputs import ClassificationOutput, TrainOutput
from stages.models import LoggingStep, backward


class Heads(LoggingStep, nn.ModuleDict):
    def __init__(self, input_shape, num_outputs):
        width = input_shape["size"][0] + 1
        super().__init__({name: nn.Linear(width, count) for name, count in num_outputs.items()})

    def valid_step(self, batch):
        features = torch.cat((batch.inputs["size"], batch.inputs["age"][:, None]), dim=1)
        kinds, prices = (self[name](features) for name in ("kind", "price"))
        error = F.mse_loss(prices[:, 0], batch.targets["price"])
        self.log("price", error)
        loss = F.cross_entropy(kinds, batch.targets["kind"]) + error
        return ClassificationOutput(loss, kinds, batch.targets["kind"])

    def train_step(self, batch):
        item = self.valid_step(batch)
        return TrainOutput(self, backward(self, item.loss), item)
"""
SOURCE = "kind: npz\n    path: pets.npz\n    inputs: [size, age]\n    targets: [kind, price]"


@pytest.mark.long  # test_folds_of_samples_of_any_structure_divide_them, test_folds_of_a_point_are_one_run
def test_folds_of_samples_with_several_targets_are_one_line_of_means(project):
    draws = np.random.default_rng(0)
    targets = {"kind": np.arange(40) % 2, "price": draws.random(40)}
    np.savez(project.folder / "pets.npz", size=draws.random((40, 3)), age=draws.random(40), **targets)
    (project.folder / "heads.py").write_text(MODEL)
    project.edit("params.yaml", "kind: digits\n    path: null", SOURCE)
    project.use_model("heads:Heads")
    project.add_deps()
    project.ok("git", "add", "-A")
    project.ok("git", "commit", "-qm", "Several targets")

    table = project.call("sweep", "--folds", "2").ok()

    assert re.search(r"^fold=1 \(2 runs\) ", table, re.MULTILINE)
    listed = json.loads(project.call("compare", "--json").ok())["data"]["runs"]
    folds = [run["metrics"] for run in listed if run["name"] != "workspace"]
    averaged = json.loads(project.call("compare", "--repeats", "--json").ok())["data"]["runs"]
    mean = next(run["metrics"] for run in averaged if run["name"] != "workspace")
    for name in ("valid/Loss", "valid/Accuracy", "valid/price"):
        values = [metrics[name]["last"] for metrics in folds]
        assert mean[name]["last"] == pytest.approx(statistics.fmean(values))
        assert mean[name]["deviation"] == pytest.approx(statistics.stdev(values))
    assert folds[0]["valid/Loss"]["last"] != folds[1]["valid/Loss"]["last"]
