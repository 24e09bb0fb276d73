"""fit: the training, from what build-learner made to checkpoints, logs, metrics and curves."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt

from stages import data, learner, loggers, metrics
from stages.checkpoints.retention import Keep
from stages.contracts.config import Config, Use
from stages.contracts.errors import RunInterruptedError
from stages.contracts.events import Renderer
from stages.learner.stopping import MetricEarlyStopping
from stages.metrics.config import MetricConfig
from stages.optim.gradients import Accumulation
from stages.optim.non_finite import NonFinite

VERSION = "2"


class FitConfig(Config):
    """The section ``fit``."""

    num_epochs: PositiveInt = 10
    batch_size: PositiveInt = 64
    num_workers: NonNegativeInt = 4
    """Processes that prepare batches; 0 means none. Changes no number. Data in memory needs none."""
    seed: int = 42
    """Of the order of samples and of dropout."""
    device: str | tuple[str, ...] = "auto"
    """``auto``, ``cpu``, ``cuda:0`` or ``mps``; of several each has a batch at a time."""
    num_threads: PositiveInt | None = None
    """torch's threads on a CPU; none leaves it to torch, and then another machine may round otherwise."""
    grads_accumulation: Accumulation = Accumulation()
    """Batches for one step of the optimizer, how they are added up, and what becomes of what is left."""
    gradient_checkpointing: bool = False
    """Computes activations twice instead of keeping them: less memory, more time, the same numbers."""
    non_finite: NonFinite = NonFinite()
    """What to do about a NaN or infinity in loss or gradients."""
    early_stopping: MetricEarlyStopping | None = None
    """When to stop before ``num_epochs``; None for never."""
    keep: Keep = Keep()
    """Which checkpoints stay."""
    metrics: tuple[MetricConfig, ...] = (Use(kind="loss"), Use(kind="accuracy"))
    """``loss``, ``accuracy``, or import paths; followed on both splits."""


@dataclass(frozen=True)
class Paths:
    """What the stage reads and writes."""

    artifacts: Path
    learner: Path
    data: Path
    checkpoint: Path
    train: Path
    valid: Path
    metrics: Path
    plots: Path


def fit(config: FitConfig, paths: Paths, renderer: Renderer | None = None) -> None:
    """Train through all epochs and print the summary; *renderer* shows it, or what fits the output.

    Nothing half-made stands where an output belongs: the run works in a directory of its own, and its
    results are renamed into place at the end.
    """
    prepared = data.read(paths.data)
    learner.set_num_threads(config.num_threads)
    with _workspace(paths) as workspace:
        start = learner.Blueprint.read(workspace).build(config.seed)
        run = _builder(config, workspace, renderer).build(*start)
        run.fit(*_loaders(config, prepared))
        if run.interrupted:
            raise RunInterruptedError(
                f"stopped on request after epoch {run.epoch} of {config.num_epochs}: nothing is recorded, "
                "and the outputs are those of the last finished run"
            )
        loggers.write_metrics(run.history, workspace / "metrics.json")
        loggers.write_curves(run.history, workspace / "plots")
        _publish(workspace, paths)


@contextmanager
def _workspace(paths: Paths) -> Iterator[Path]:
    """A copy of what build-learner made, to train in; however it ends, only its log for people stays."""
    workspace = paths.artifacts / ".fit"
    shutil.rmtree(workspace, ignore_errors=True)
    shutil.copytree(paths.learner, workspace)
    try:
        yield workspace
    finally:
        log = workspace / "experiment.log"
        if log.exists():
            with (paths.artifacts / log.name).open("ab") as whole:
                whole.write(log.read_bytes())
        shutil.rmtree(workspace)


def _builder(config: FitConfig, workspace: Path, renderer: Renderer | None) -> "learner.LearnerBuilder":
    devices = [config.device] if isinstance(config.device, str) else config.device
    accumulation = config.grads_accumulation
    builder = (
        learner.LearnerBuilder(workspace)
        .metrics(*map(metrics.build_metric, config.metrics))
        .num_epochs(config.num_epochs)
        .seed(config.seed)
        .devices(devices)
        .grads_accumulation(
            accumulation.batches, reduction=accumulation.reduction, leftover=accumulation.leftover
        )
        .non_finite(config.non_finite)
        .with_file_checkpointer(learner.checkpoint_recorder())
        .with_checkpointing_strategy(config.keep.rule())
        .checkpoint(0)
        .summary()
    )
    if config.early_stopping:
        builder.early_stopping(config.early_stopping)
    if config.gradient_checkpointing:
        builder.gradient_checkpointing()
    return builder.renderer(renderer) if renderer else builder


def _loaders(config: FitConfig, prepared: "data.Prepared") -> "tuple[data.DataLoader, data.DataLoader]":
    normalization = prepared.info.normalization
    builder = (
        data.DataLoaderBuilder(data.NormalizeBatcher(normalization.mean, normalization.std))
        .batch_size(config.batch_size)
        .num_workers(config.num_workers)
    )
    valid = builder.build(prepared.valid)
    return builder.shuffle(config.seed).build(prepared.train), valid


def _publish(workspace: Path, paths: Paths) -> None:
    """Rename the results into place, and the telemetry, which is no DVC output."""
    places = [getattr(paths, name) for name in ("checkpoint", "train", "valid", "plots")]
    for target in [*places, paths.artifacts / "telemetry"]:
        shutil.rmtree(target, ignore_errors=True)
        made = workspace / target.name
        if made.exists() or target in places:
            made.replace(target)
    (workspace / "metrics.json").replace(paths.metrics)
