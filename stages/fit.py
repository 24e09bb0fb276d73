"""fit: the training, from what build-learner made to checkpoints, logs, metrics and curves."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt

from stages import data, learner, loggers, metrics
from stages.contracts.config import Config, Use
from stages.contracts.history import History
from stages.metrics.config import MetricConfig

VERSION = "1"


class FitConfig(Config):
    """The section ``fit``."""

    num_epochs: PositiveInt = 10
    batch_size: PositiveInt = 64
    num_workers: NonNegativeInt = 4
    """Processes that prepare batches; 0 means none. Changes no number. Data in memory needs none."""
    seed: int = 42
    """Of the order of samples and of dropout."""
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda:0`` or ``mps``."""
    num_threads: PositiveInt | None = None
    """torch's threads on a CPU; none leaves it to torch, and then another machine may round otherwise."""
    grads_accumulation: PositiveInt = 1
    """Batches for one step of the optimizer."""
    metrics: tuple[MetricConfig, ...] = (Use(kind="loss"), Use(kind="accuracy"))
    """``loss``, ``accuracy``, or import paths; followed on both splits."""


@dataclass(frozen=True)
class Paths:
    """What the stage reads and writes."""

    learner: Path
    data: Path
    checkpoint: Path
    train: Path
    valid: Path
    metrics: Path
    plots: Path


def fit(config: FitConfig, paths: Paths) -> None:
    """Train through all epochs and print the summary.

    Nothing half-made stands where an output belongs: the run works in a directory of its own, and its
    results are renamed into place at the end.
    """
    prepared = data.read(paths.data)
    workspace = paths.checkpoint.with_name(".fit")
    shutil.rmtree(workspace, ignore_errors=True)
    shutil.copytree(paths.learner, workspace)
    history = _train(config, workspace, prepared)
    loggers.write_metrics(history, workspace / "metrics.json")
    loggers.write_curves(history, workspace / "plots")
    _publish(workspace, paths)


def _train(config: FitConfig, workspace: Path, prepared: "data.Prepared") -> History:
    learner.set_num_threads(config.num_threads)
    blueprint = learner.Blueprint.read(workspace)
    builder = learner.LearnerBuilder(workspace)
    for use in config.metrics:
        builder.metric_train_numeric(metrics.build_metric(use))
        builder.metric_valid_numeric(metrics.build_metric(use))
    run = (
        builder.num_epochs(config.num_epochs)
        .seed(config.seed)
        .devices([config.device])
        .grads_accumulation(config.grads_accumulation)
        .with_file_checkpointer(learner.checkpoint_recorder())
        .checkpoint(0)
        .summary()
        .build(*blueprint.build(config.seed))
    )
    normalization = prepared.info.normalization
    loader = (
        data.DataLoaderBuilder(data.NormalizeBatcher(normalization.mean, normalization.std))
        .batch_size(config.batch_size)
        .num_workers(config.num_workers)
    )
    valid = loader.build(prepared.valid)
    run.fit(loader.shuffle(config.seed).build(prepared.train), valid)
    return run.history


def _publish(workspace: Path, paths: Paths) -> None:
    for name in ("checkpoint", "train", "valid", "plots"):
        target: Path = getattr(paths, name)
        shutil.rmtree(target, ignore_errors=True)
        (workspace / name).replace(target)
    (workspace / "metrics.json").replace(paths.metrics)
    shutil.rmtree(workspace)
