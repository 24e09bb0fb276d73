"""fit: the training, from what build-learner made to checkpoints, logs, metrics and curves."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from stages import checkpoints, data, learner, loggers, metrics, records, runs
from stages.checkpoints.retention import Keep
from stages.contracts.config import Config, Use
from stages.contracts.errors import RunInterruptedError, StageError
from stages.contracts.events import Renderer
from stages.contracts.files import md5
from stages.contracts.interrupter import Interrupter
from stages.contracts.seeds import derived_seed
from stages.learner.stopping import MetricEarlyStopping
from stages.metrics.config import MetricConfig
from stages.optim.gradients import Accumulation
from stages.optim.non_finite import NonFinite
from stages.records.config import RecorderConfig

VERSION = "5"
CHANGES_NO_NUMBER = {
    "num_epochs",
    "num_workers",
    "device",
    "checkpoint_every_steps",
    "checkpoint_every_seconds",
    "max_unsaved_seconds",
}
"""Params that are no part of a run's key: with others of them it is taken up all the same."""


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
    deterministic: bool = False
    """Has accelerators compute the same bits each time, which is slower; a CPU does in any case."""
    gradient_checkpointing: bool = False
    """Computes activations twice instead of keeping them: less memory, more time, the same numbers."""
    non_finite: NonFinite = NonFinite()
    """What to do about a NaN or infinity in loss or gradients."""
    early_stopping: MetricEarlyStopping | None = None
    """When to stop before ``num_epochs``; None for never."""
    keep: Keep = Keep()
    """Which checkpoints stay."""
    recorder: RecorderConfig = RecorderConfig()
    """How checkpoints write model, optimizer and scheduler; in half precision no resume is exact."""
    checkpoint_every_steps: PositiveInt | None = None
    """Batches between two checkpoints in the middle of an epoch, of which the newest stays; None: by time."""
    checkpoint_every_seconds: PositiveFloat | None = 300.0
    """The same by time; None for none. A run that is stopped in good order is saved in any case."""
    max_unsaved_seconds: PositiveFloat = 3600.0
    """A run whose checkpoints cannot be written for longer than this ends."""
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
    iterations: Path
    """In ``plots``, as is ``confusion``."""
    confusion: Path
    runs: Path
    """Where the run stores are."""


@dataclass(frozen=True)
class Surroundings:
    """What only the caller knows."""

    code: Mapping[str, Any] = field(default_factory=dict)
    """The content of what else the run depends on, as a hash for each file."""
    recorded: str | None = None
    """The md5 of metrics.json in the run that is recorded now; None where there is none."""
    renderer: Renderer | None = None
    """Shows the run; None for what fits the output."""
    interrupter: Interrupter | None = None
    """Stops it from outside."""


def fit(config: FitConfig, paths: Paths, surroundings: Surroundings | None = None) -> None:
    """Train through all epochs and print the summary.

    The run works in a store of its own, and goes on there from its newest checkpoint where it was stopped,
    or where there are more epochs to do than before. Its results are copied to where they belong at the end,
    so nothing half-made ever stands there. A finished run that is recorded is one to do again.

    Raises `RunInterruptedError` where it was asked to stop, and whatever keeps it from its end.
    """
    around = surroundings or Surroundings()
    try:
        with runs.open_store(paths.runs, entries(config, paths, around.code)) as store:
            _make_ready(store, config, paths, around.recorded)
            if store.finished is None:
                _train(config, paths, store, around)
            else:
                sys.stdout.write(f"run {store.key} is done already: its results are copied\n")
            _publish(store.path, paths)
    except OSError as error:
        raise StageError(
            f"{error.filename or paths.runs}: {error.strerror or error}. Nothing is lost: see to it, and the "
            "same command goes on"
        ) from error
    with suppress(OSError):  # the results are there, and the next run prunes again
        runs.prune(paths.runs)


def entries(config: FitConfig, paths: Paths, code: Mapping[str, Any]) -> dict[str, Any]:
    """What the key of a run is made of: all that can change a number in it."""
    return {
        "version": VERSION,
        "params": config.model_dump(mode="json", exclude=CHANGES_NO_NUMBER),
        "inputs": {"learner": runs.content_hash(paths.learner), "data": runs.content_hash(paths.data)},
        "code": dict(code),
    }


def _make_ready(store: "runs.RunStore", config: FitConfig, paths: Paths, recorded: str | None) -> None:
    """Have the store hold a run that can go on, or one that is done; or what build-learner made."""
    done = store.finished
    if done and done["num_epochs"] < config.num_epochs:
        store.reopen()
    elif done and done["num_epochs"] == config.num_epochs and md5(store.path / "metrics.json") != recorded:
        return
    elif done or _is_too_far(store.path, config.num_epochs):
        store.restart()
    if not (_saved(store.path) and (store.path / learner.BLUEPRINT).exists()):
        store.restart()
        _begin(store.path, paths.learner)


def _is_too_far(workspace: Path, num_epochs: int) -> bool:
    """Whether every checkpoint is of a later epoch than the last one now."""
    saved = _saved(workspace)
    return bool(saved) and min(saved) > num_epochs


def _saved(workspace: Path) -> list[int]:
    return checkpoints.FileCheckpointer(workspace / "checkpoint", records.DefaultRecorder()).saved()


def _begin(workspace: Path, start: Path) -> None:
    """Copy what build-learner made; last comes what says that it is all there."""
    files = [path for path in sorted(start.rglob("*")) if path.is_file()]
    for path in sorted(files, key=lambda each: each.name == learner.BLUEPRINT):
        runs.copy_whole(path, workspace / path.relative_to(start))


def _train(config: FitConfig, paths: Paths, store: "runs.RunStore", around: Surroundings) -> None:
    prepared = data.read(paths.data)
    learner.set_num_threads(config.num_threads)
    if config.deterministic:
        learner.set_deterministic()
    start = learner.Blueprint.read(store.path).build(config.seed)
    builder = _builder(config, store, around)
    run = builder.build(*start)
    runs.check_space(store.path, (config.keep.most + 2) * run.checkpoint_bytes)
    if run.resumed:
        sys.stdout.write(f"run {store.key} goes on {run.resumed}\n")
    plots = loggers.PlotPaths(paths.plots, paths.iterations, paths.confusion).moved(store.path / "plots")
    train, valid = _loaders(config, prepared)
    run.fit(train, valid)
    seed = derived_seed(config.seed, "confusion")
    matrix = learner.confusion_matrix(run.model, valid, seed=seed, should_stop=lambda: run.interrupted)
    if run.interrupted:
        raise RunInterruptedError(
            f"stopped after epoch {run.epoch} of {config.num_epochs}, and saved in {store.path}: the same "
            "command goes on from there. Nothing is recorded; the outputs are those of the last finished run"
        )
    loggers.write_metrics(run.history, store.path / "metrics.json")
    loggers.write_plots(run.history, matrix.cells() if matrix else [], store.path, plots)
    store.finish({"num_epochs": config.num_epochs, "epoch": run.epoch})


def _builder(config: FitConfig, store: "runs.RunStore", around: Surroundings) -> "learner.LearnerBuilder":
    accumulation = config.grads_accumulation
    builder = (
        learner.LearnerBuilder(store.path)
        .metrics(*[metrics.build_metric(each) for each in config.metrics])
        .num_epochs(config.num_epochs)
        .seed(config.seed)
        .devices([config.device] if isinstance(config.device, str) else config.device)
        .grads_accumulation(
            accumulation.batches, reduction=accumulation.reduction, leftover=accumulation.leftover
        )
        .non_finite(config.non_finite)
        .with_file_checkpointer(records.recorder_of(config.recorder))
        .with_checkpointing_strategy(config.keep.rule())
        .checkpoint_every(steps=config.checkpoint_every_steps, seconds=config.checkpoint_every_seconds)
        .max_unsaved(config.max_unsaved_seconds)
        .identity(store.key)
        .checkpoint("auto")
        .with_progress_logger(runs.HeartbeatRenderer(store.path))
        .summary()
    )
    if config.early_stopping:
        builder.early_stopping(config.early_stopping)
    if config.gradient_checkpointing:
        builder.gradient_checkpointing()
    if around.interrupter:
        builder.with_interrupter(around.interrupter)
    return builder.renderer(around.renderer) if around.renderer else builder


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
    """Copy the results to where they belong, with the log and the telemetry, which are no DVC outputs."""
    outputs = [paths.checkpoint, paths.train, paths.valid, paths.plots, paths.metrics]
    others = [paths.artifacts / "telemetry", paths.artifacts / "experiment.log"]
    runs.publish({workspace / name.name: name for name in [*outputs, *others]})
