"""fit: the training, from what build-learner made to checkpoints, logs, metrics and curves."""

import logging
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages import checkpoints, data, learner, loggers, metrics, records, runs
from stages.checkpoints.retention import Keep
from stages.contracts.config import Config, Use
from stages.contracts.confusion import shown_cells
from stages.contracts.errors import CheckpointError, RunInterruptedError, StageError
from stages.contracts.events import Renderer
from stages.contracts.fields import Count, Devices, Flag, Seconds, Seed, Steps, Threads, Workers
from stages.contracts.files import md5
from stages.contracts.interrupter import Interrupter
from stages.contracts.seeds import derived_seed
from stages.contracts.user_code import user_frames
from stages.data.config import BatcherConfig
from stages.learner.stopping import MetricEarlyStopping
from stages.metrics.registry import MetricConfig
from stages.optim.gradients import Accumulation
from stages.optim.non_finite import NonFinite
from stages.records.config import RecorderConfig

VERSION = "7"
CHANGES_NO_NUMBER = {
    "num_epochs",
    "num_workers",
    "device",
    "checkpoint_every_steps",
    "checkpoint_every_seconds",
    "max_unsaved_seconds",
}
"""Params that are not part of a run's key: a run resumes with other values of them.

Of ``device``, the number and kinds of devices are in the key nevertheless, in an entry of their own.
"""
CHECKPOINTS = "checkpoint"
"""The directory of the checkpoints in a run store."""
ATTEMPTS = 2
"""How often a run trains before damage to its store is an error."""
ACCELERATOR_NODES = ("nvidia*", "nvhost*", "nvgpu*", "nvmap", "dxg", "kfd")
"""Device files of which Linux has at least one if torch can use an accelerator."""

log = logging.getLogger(__name__)


class FitConfig(Config):
    """The section ``fit``."""

    num_epochs: Count = 10
    batch_size: Count = 64
    batcher: BatcherConfig = Use(kind="normalize")
    """``normalize``, or the import path of a function of the items, or of a class with ``batch(items)``."""
    num_workers: Workers = 4
    """Processes that prepare batches; 0 means none. Changes no number. Data in memory needs none."""
    seed: Seed = 42
    """Of the order of samples and of dropout."""
    device: Devices = "auto"
    """``auto``, ``cpu``, ``cuda:0`` or ``mps``; of several each has a batch at a time.

    Their number and kinds are part of the run's key, and which of a kind they are is not: a run on ``cuda:0``
    resumes on ``cuda:1``, but not on ``cpu`` or on two devices. ``auto`` counts as what it resolves to.
    """
    num_threads: Threads | None = None
    """torch's threads on a CPU; none leaves it to torch, and then another machine may round otherwise."""
    grads_accumulation: Accumulation = Accumulation()
    """Batches for one step of the optimizer, how they are added up, and what becomes of what is left."""
    deterministic: Flag = False
    """Has accelerators compute the same bits each time, which is slower; a CPU does in any case."""
    gradient_checkpointing: Flag = False
    """Computes activations twice instead of keeping them: less memory, more time, the same numbers."""
    non_finite: NonFinite = NonFinite()
    """What to do about a NaN or infinity in loss or gradients."""
    early_stopping: MetricEarlyStopping | None = None
    """When to stop before ``num_epochs``; None for never."""
    keep: Keep = Keep()
    """Which checkpoints stay."""
    recorder: RecorderConfig = RecorderConfig()
    """How checkpoints write model, optimizer and scheduler; in half precision no resume is exact."""
    checkpoint_every_steps: Steps | None = None
    """Batches between two checkpoints in the middle of an epoch, of which the newest stays; None: by time."""
    checkpoint_every_seconds: Seconds | None = 300.0
    """The same by time; None for none. A run that is stopped in good order is saved in any case."""
    max_unsaved_seconds: Seconds = 3600.0
    """A run whose checkpoints cannot be written for longer than this ends."""
    metrics: tuple[MetricConfig, ...] = (Use(kind="loss"), Use(kind="accuracy"))
    """The metrics of both splits: import paths of your own classes, or kinds. Arguments and defaults:

    * ``accuracy``: ``pad_token: null``
    * ``auc_pr``: ``reduction: macro``
    * ``auroc``: ``reduction: macro``
    * ``bleu``: ``n_gram: 4``, ``pad_token: null``, ``smooth: false``
    * ``cer``: ``pad_token: null``
    * ``cpu_memory``: no arguments
    * ``cpu_temperature``: no arguments
    * ``cpu_use``: no arguments
    * ``cuda``: no arguments
    * ``dice``: ``num_classes``, ``include_background: false``
    * ``f_beta``: ``beta: 1.0``, ``threshold: null``, ``top_k: null``, ``reduction: macro``
    * ``hamming``: ``threshold: 0.5``, ``sigmoid: true``
    * ``iteration_speed``: no arguments
    * ``learning_rate``: no arguments
    * ``loss``: no arguments
    * ``mae``: no arguments
    * ``ms_ssim``: ``data_range: 1.0``, ``sigma: 1.5``
    * ``mse``: no arguments
    * ``perplexity``: ``pad_token: null``
    * ``precision``: ``threshold: null``, ``top_k: null``, ``reduction: macro``
    * ``psnr``: ``max_pixel: 1.0``
    * ``recall``: ``threshold: null``, ``top_k: null``, ``reduction: macro``
    * ``rouge_l``: ``pad_token: null``
    * ``ssim``: ``data_range: 1.0``, ``sigma: 1.5``
    * ``top_k``: ``k``, ``pad_token: null``
    * ``wer``: ``pad_token: null``
    """


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


def fit(config: FitConfig, paths: Paths, surroundings: Surroundings | None = None) -> Path:
    """Train through all epochs, print the summary and publish the results.

    The run works in a store of its own. It resumes there from its newest checkpoint if it was interrupted, or
    if there are more epochs to train than before. The results are copied to their place at the end and
    verified on the way; damaged files are trained again. A finished run that is recorded starts over.
    Returns the path of the store.

    Raises `RunInterruptedError` if it was asked to stop, and whatever prevents it from finishing.
    """
    around = surroundings or Surroundings()
    try:
        with runs.open_store(paths.runs, entries(config, paths, around.code)) as store:
            _make_ready(store, config, paths, around.recorded)
            _finish(store, config, paths, around)
    except OSError as error:
        if user_frames(error):
            raise
        raise StageError(
            f"{error.filename or paths.runs}: {error.strerror or error}. No progress was lost. Fix this and "
            "run the same command again to resume"
        ) from error
    with suppress(OSError):  # the results are there, and the next run prunes again
        runs.prune(paths.runs, current=store.key)
    return store.path


def _finish(store: "runs.RunStore", config: FitConfig, paths: Paths, around: Surroundings) -> None:
    """Train what is left, and publish; files that are damaged by then are trained again, once."""
    if store.finished is not None:
        sys.stdout.write(f"run {store.key} is finished already: its results are copied\n")
    for _ in range(ATTEMPTS):
        if store.finished is None:
            _train(config, paths, store, around)
        damaged = _publish(store, paths)
        if not damaged:
            return
        _repair(store, paths, damaged)
    raise StageError(
        f"{store.path}: {', '.join(damaged)} changed again after the training was repeated. Check the disk"
    )


def entries(config: FitConfig, paths: Paths, code: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the key of a run is made of: everything that can change a number in it."""
    exclude = CHANGES_NO_NUMBER | ({"batcher"} if config.batcher == Use(kind="normalize") else set())
    return {
        "version": VERSION,
        "params": config.model_dump(mode="json", exclude=exclude),  # the default keeps keys of older runs
        "devices": _device_kinds(config.device),
        "inputs": {"learner": runs.content_hash(paths.learner), "data": runs.content_hash(paths.data)},
        "code": dict(code),
    }


def _device_kinds(device: str | tuple[str, ...]) -> list[str]:
    """Return the kind of each device, such as ``cuda``."""
    names = [device] if isinstance(device, str) else device
    return [_best_kind() if name == "auto" else name.partition(":")[0] for name in names]


def _best_kind() -> str:
    """Return the kind that ``auto`` resolves to; torch is loaded only if there may be an accelerator."""
    if sys.platform == "linux" and not any(any(Path("/dev").glob(name)) for name in ACCELERATOR_NODES):
        return "cpu"
    return learner.find_device("auto").type


def _make_ready(store: "runs.RunStore", config: FitConfig, paths: Paths, recorded: str | None) -> None:
    """Prepare the store: with a run to resume, with a finished one, or with what build-learner made."""
    done = store.finished
    if done and done["num_epochs"] < config.num_epochs:
        if damaged := runs.damaged(store.path, store.manifest):
            _repair(store, paths, damaged)
        store.reopen()
    elif done and done["num_epochs"] == config.num_epochs and md5(store.path / "metrics.json") != recorded:
        return
    elif done or _is_too_far(store.path, config.num_epochs):
        store.restart()
    else:
        _check_logs(store, paths)
    if _saved(store.path) and (store.path / learner.BLUEPRINT).exists():
        runs.copy_whole(paths.learner / learner.BLUEPRINT, store.path / learner.BLUEPRINT)
    else:
        _start_over(store, paths)


def _check_logs(store: "runs.RunStore", paths: Paths) -> None:
    """Repair an unfinished run whose logs of finished epochs were damaged."""
    if store.discard_corrupt_finish():
        log.warning("the record in %s that the run is finished is corrupt: it is made again", store.path)
    last_epoch = max(_saved(store.path), default=0)
    if damaged := runs.damaged(store.path, runs.LogLedger(store.path).read(last_epoch)):
        _repair(store, paths, damaged)


def _repair(store: "runs.RunStore", paths: Paths, damaged: Mapping[str, str]) -> None:
    """Go back to the newest checkpoint before everything *damaged*, so that it is trained again."""
    store.check_exists()
    for name, problem in sorted(damaged.items()):
        log.warning("%s %s", store.path / name, problem)
    first = runs.first_epoch(damaged)
    before = [epoch for epoch in _saved(store.path) if first is None or epoch < first]
    if before and (store.path / learner.BLUEPRINT).exists():
        runs.remove_epochs_after(store.path, before[-1])
        store.reopen()
    else:
        _start_over(store, paths)
    place = f"after epoch {before[-1]}" if before else "from the start"
    sys.stdout.write(f"run {store.key} has {len(damaged)} damaged files: it is trained again {place}\n")


def _start_over(store: "runs.RunStore", paths: Paths) -> None:
    store.restart()
    _begin(store.path, paths.learner)


def _is_too_far(workspace: Path, num_epochs: int) -> bool:
    """Whether every checkpoint is of a later epoch than the last one now."""
    saved = _saved(workspace)
    return bool(saved) and min(saved) > num_epochs


def _saved(workspace: Path) -> list[int]:
    return _checkpointer(workspace).saved()


def _checkpointer(workspace: Path) -> "checkpoints.FileCheckpointer":
    return checkpoints.FileCheckpointer(workspace / CHECKPOINTS, records.DefaultRecorder())


def _begin(workspace: Path, start: Path) -> None:
    """Copy the learner in *start*; the last file is the one that marks it as complete."""
    files = [path for path in sorted(start.rglob("*")) if path.is_file()]
    for path in sorted(files, key=lambda each: each.name == learner.BLUEPRINT):
        runs.copy_whole(path, workspace / path.relative_to(start))
    for epoch in range(1, max(_saved(workspace), default=0) + 1):
        runs.LogLedger(workspace).add(epoch)


def _train(config: FitConfig, paths: Paths, store: "runs.RunStore", around: Surroundings) -> None:
    prepared = data.read(paths.data)
    learner.set_num_threads(config.num_threads)
    if config.deterministic:
        learner.set_deterministic()
    start = learner.Blueprint.read(paths.learner).build(config.seed)
    builder = _builder(config, store, around)
    run = builder.build(*start)
    runs.check_space(store.path, (min(config.keep.most, config.num_epochs) + 2) * run.checkpoint_bytes)
    if run.resumed:
        sys.stdout.write(f"run {store.key} goes on {run.resumed}\n")
    plots = loggers.PlotPaths(paths.plots, paths.iterations, paths.confusion).moved(store.path / "plots")
    train, valid = _loaders(config, prepared)
    try:
        run.fit(train, valid)
    except (StageError, OSError):
        store.check_exists()  # if it was removed, that is the reason
        raise
    confusion = _confusion_cells(run, valid, derived_seed(config.seed, "confusion"))
    if run.interrupted:
        raise RunInterruptedError(
            f"stopped after epoch {run.epoch} of {config.num_epochs}, and saved in {store.path}: the same "
            "command goes on from there. Nothing is recorded; the outputs are those of the last finished run"
        )
    store.check_exists()
    loggers.write_metrics(run.history, store.path / "metrics.json")
    shutil.rmtree(store.path / "plots", ignore_errors=True)
    loggers.write_plots(run.history, confusion, store.path, plots)
    kept = checkpoints.kept_epochs(config.keep.rule(), run.history, _begun_with(paths.learner), run.epoch)
    known = _known_files(store.path, run.epoch, kept)
    store.finish({"num_epochs": config.num_epochs, "epoch": run.epoch}, known)
    runs.record_duration(store.path)


def _confusion_cells(run: "learner.Learner", valid: Any, seed: int) -> Sequence[tuple[int, ...]]:
    """Return the cells to show of the confusion matrix; none if it cannot be computed."""
    try:
        matrix = learner.confusion_matrix(run.model, valid, seed=seed, should_stop=lambda: run.interrupted)
        return shown_cells(matrix.cells(), matrix.classes) if matrix else []
    except Exception as error:  # noqa: BLE001  no plot may cost the run that it shows
        log.warning(
            "the confusion matrix cannot be computed: %r. The results of the training are not affected", error
        )
        return []


def _begun_with(start: Path) -> list[int]:
    """Return the epochs whose checkpoints build-learner has taken over from another run."""
    return [epoch for epoch in _saved(start) if epoch > 0]


def _known_files(workspace: Path, last_epoch: int, kept: Iterable[int]) -> dict[str, Any]:
    """Return sizes and hashes that were noted when the logs and the *kept* checkpoints were written."""
    known = dict(runs.LogLedger(workspace).read(last_epoch))
    checkpointer = _checkpointer(workspace)
    for epoch in {*checkpointer.saved(), *kept}:
        try:
            files = checkpointer.files(epoch)
        except CheckpointError:
            files = {f"trainer-{epoch}.mpk.gz": runs.UNREADABLE}
        known |= {f"{checkpointer.directory.name}/{name}": file for name, file in files.items()}
    return known


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
        .with_file_checkpointer(records.build_recorder(config.recorder))
        .with_checkpointing_strategy(config.keep.rule())
        .checkpoint_every(steps=config.checkpoint_every_steps, seconds=config.checkpoint_every_seconds)
        .max_unsaved(config.max_unsaved_seconds)
        .identity(store.key)
        .checkpoint("auto")
        .with_progress_logger(
            runs.HeartbeatRenderer(
                store.path, check=store.check_exists, epoch_ended=runs.LogLedger(store.path).add
            )
        )
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
    builder = (
        data.DataLoaderBuilder(data.build_batcher(config.batcher, prepared.info.normalization))
        .batch_size(config.batch_size)
        .num_workers(config.num_workers)
    )
    valid = builder.build(prepared.valid)
    return builder.shuffle(config.seed).build(prepared.train), valid


def _publish(store: "runs.RunStore", paths: Paths) -> dict[str, str]:
    """Copy the results to their place, with the log and the telemetry, which are not DVC outputs.

    Returns the damaged files of the results; then nothing was published.
    """
    store.check_exists()
    outputs = [paths.checkpoint, paths.train, paths.valid, paths.plots, paths.metrics]
    others = [paths.artifacts / "telemetry", paths.artifacts / "experiment.log"]
    names = {name.name for name in outputs}
    expected = {
        str(store.path / name): written
        for name, written in store.manifest.items()
        if name.partition("/")[0] in names
    }
    made = {store.path / name.name: name for name in [*outputs, *others]}
    damaged = runs.publish(made, expected)
    return {Path(name).relative_to(store.path).as_posix(): problem for name, problem in damaged.items()}
