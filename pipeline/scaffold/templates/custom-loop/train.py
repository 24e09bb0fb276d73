"""The stage fit: a training loop of PyTorch, written out. `dvc repro` runs it as `python train.py`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from model import Net
from pipeline.engine.custom_stage import run_custom_stage
from pipeline.project.params import Params
from stages import data
from stages.contracts.config import arguments_of
from stages.contracts.history import Split, Value
from stages.contracts.outputs import ClassificationOutput
from stages.devices import derive_seed, find_device
from stages.learner import LoopCheckpoints
from stages.learner.from_params import build_loader
from stages.loggers import write_curves, write_metrics
from stages.metrics import AccuracyMetric, LossMetric, Metric
from stages.optim import learning_rate_of
from stages.records import DefaultRecorder, save_file

METRICS: tuple[Metric, ...] = (LossMetric(), AccuracyMetric())


def train(params: Params, paths: Mapping[str, Path], folder: Path) -> None:
    """Train, and write the outputs of the stage to *folder*; resume from the checkpoints there, if any."""
    torch.set_num_threads(params.fit.num_threads or 1)
    device = find_device(str(params.fit.device))
    prepared = data.read(paths["data"])
    loaders = {split: build_loader(params.fit, prepared, split) for split in Split}
    torch.manual_seed(params.build_learner.seed)
    arguments: dict[str, Any] = arguments_of(params.build_learner.model)
    model = Net(prepared.info.input_shape, prepared.info.num_outputs, **arguments).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate_of(params.build_learner.optimizer))
    checkpoints = LoopCheckpoints(folder / "checkpoint", model, optimizer=optimizer)
    for epoch in range(checkpoints.restore() + 1, params.fit.num_epochs + 1):
        torch.manual_seed(derive_seed(params.fit.seed, epoch))  # a resumed run draws the same dropout
        loaders[Split.TRAIN].set_epoch(epoch)  # and has the same order
        for split, loader in loaders.items():
            for value in run_epoch(model, optimizer if split is Split.TRAIN else None, loader, device):
                checkpoints.history.add(Value(epoch, split, *value))
        print(f"epoch {epoch}: {checkpoints.history.value(epoch, Split.VALID, 'Loss'):.4f}", flush=True)
        checkpoints.save(epoch)
    save_file(model, folder / "model", DefaultRecorder())
    write_metrics(checkpoints.history, folder / "metrics.json")
    write_curves(checkpoints.history, folder / "plots")


def run_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    loader: Iterable[Any],
    device: torch.device,
) -> list[tuple[str, float]]:
    """Return the value of each metric over an epoch; without *optimizer*, only evaluate *model*."""
    model.train(optimizer is not None)
    measured: list[list[Any]] = []
    for batch in loader:
        inputs, targets = (each.to(device) for each in batch)
        with torch.set_grad_enabled(optimizer is not None):
            logits = model(inputs)
            loss = F.cross_entropy(logits, targets)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        output = ClassificationOutput(loss.detach(), logits.detach(), targets)
        measured.append([metric.measure(output) for metric in METRICS])
    totals = (sum(values[1:], values[0]) for values in zip(*measured, strict=True))
    return [(metric.name, total.value) for metric, total in zip(METRICS, totals, strict=True)]


if __name__ == "__main__":
    run_custom_stage("fit", train)
