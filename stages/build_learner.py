"""build-learner: the model with its first weights, its optimizer and its schedule, as records of epoch 0.

Or, where ``checkpoint`` says so, what another run had come to: the records of that epoch, its logs until
then, and the checkpoints that it had kept.
"""

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import field_validator, model_validator

from stages import checkpoints, data, learner, loggers, records, renderers, runs
from stages.contracts.config import Config
from stages.contracts.errors import CheckpointError
from stages.contracts.fields import Bytes, Count, Flag, Seed, Text
from stages.contracts.history import History, Split
from stages.models.config import CnnConfig, ModelConfig
from stages.optim.config import Adam, OptimizerConfig
from stages.optim.schedules import Constant, ScheduleConfig

VERSION = "4"


class CheckpointConfig(Config):
    """Where a run goes on from: a revision of this project, or a path."""

    rev: Text | None = None
    """The full SHA of a commit or an experiment whose outputs DVC tracks; ``learner resume`` finds it."""
    path: Text | None = None
    """An artifact directory or its checkpoints, ours or Burn's, or a record of a model. Of what is not ours
    the weights alone are sure to come along."""
    epoch: Count | None = None
    """Which one. Null, for a record: its weights begin a run at epoch 0."""
    weights_only: Flag = False
    """Take weights, history and count of epochs; the optimizer and the schedule start from the beginning."""
    limit: Bytes | None = None
    """Bytes of content that a record without our ``trainer-N`` may have, if its file compresses more than
    100 times and exceeds 64 MiB. Null: no more than that."""

    @field_validator("rev")
    @classmethod
    def _check_rev(cls, rev: str | None) -> str | None:
        if rev is not None and not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", rev):
            raise ValueError(
                f"a full SHA is needed, as names move: `learner resume {rev} --epoch N` finds and writes it"
            )
        return rev

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.rev is None) == (self.path is None):
            raise ValueError("say either rev or path")
        if self.rev is not None and self.epoch is None:
            raise ValueError("a rev needs an epoch too")
        return self

    def __str__(self) -> str:
        whose = str(self.path) if self.rev is None else f"revision {self.rev[:12]}"
        return whose if self.epoch is None else f"epoch {self.epoch} of {whose}"


class BuildLearnerConfig(Config):
    """The section ``build_learner``."""

    seed: Seed = 42
    """Of the first weights."""
    model: ModelConfig = CnnConfig()
    """The model: the import path of your own class with its arguments, or a kind. Arguments and defaults:

    * ``cnn``: ``channels: [8, 16]``, ``kernel_size: 3``, ``pool_size: 8``, ``hidden_size: 512``,
      ``dropout: 0.5``
    * ``mlp``: ``hidden_sizes: [64]``, ``dropout: 0.0``
    * ``mlp_regressor``: ``hidden_sizes: [64]``, ``dropout: 0.0``
    """
    optimizer: OptimizerConfig = Adam()
    """The optimizer; each kind also takes ``clipping`` (see `stages.optim.clipping`). Arguments and defaults:

    * ``adam``: ``learning_rate: 1e-4``, ``beta_1: 0.9``, ``beta_2: 0.999``, ``epsilon: 1e-5``,
      ``amsgrad: false``, ``weight_decay: 0.0``
    * ``adamw``: ``learning_rate: 1e-4``, ``beta_1: 0.9``, ``beta_2: 0.999``, ``epsilon: 1e-5``,
      ``amsgrad: false``, ``weight_decay: 1e-4``
    * ``sgd``: ``learning_rate: 1e-2``, ``momentum: null``, ``dampening: 0.1``, ``nesterov: false``,
      ``weight_decay: 0.0``
    * ``rmsprop``: ``learning_rate: 1e-2``, ``alpha: 0.99``, ``momentum: 0.9``, ``epsilon: 1e-5``,
      ``centered: false``, ``weight_decay: 0.0``
    * ``adagrad``: ``learning_rate: 1e-2``, ``lr_decay: 0.0``, ``epsilon: 1e-5``, ``weight_decay: 0.0``
    * ``muon``: ``learning_rate: 1e-3``, ``momentum: 0.95``, ``nesterov: true``, ``ns_steps: 5``,
      ``epsilon: 1e-7``, ``adjust_lr: original``, ``weight_decay: 0.0``, ``others: adamw``
    * ``lbfgs``: ``learning_rate: 1.0``, ``max_iter: 20``, ``max_eval: null``, ``history_size: 100``,
      ``tolerance_grad: 1e-7``, ``tolerance_change: 1e-9``, ``line_search: null``
    """
    schedule: ScheduleConfig = Constant()
    """The learning rate schedule; each kind also takes ``initial`` (default: the optimizer's learning rate)
    and ``per``, ``batch`` (the default) or ``epoch``. Arguments and defaults:

    * ``constant``: no arguments
    * ``linear``: ``final``, ``num_iters``
    * ``cosine``: ``num_iters``, ``min: 0.0``
    * ``exponential``: ``gamma``
    * ``noam``: ``warmup_steps: 4000``, ``model_size: 512``
    * ``step``: ``step_size``, ``gamma: 0.1``
    * ``composed``: ``schedulers``, ``reduction: prod``
    * ``sequential``: ``schedulers``, ``milestones``
    """
    checkpoint: CheckpointConfig | None = None
    """What to go on from. Null: a fresh model."""


@dataclass(frozen=True)
class Paths:
    """What the stage reads and writes."""

    dataset: Path
    learner: Path


def build_learner(config: BuildLearnerConfig, paths: Paths, origin: Path | None = None) -> None:
    """Write what `fit` starts from: ``learner.json`` and the records of epoch 0, or of an epoch of *origin*.

    *origin* is where ``config.checkpoint`` lies in the file system now. Raises `CheckpointError` where it is
    not there, not whole, or not one of this model and optimizer.
    """
    info = data.read_info(paths.dataset)
    blueprint = learner.Blueprint(
        model=config.model,
        optimizer=config.optimizer,
        schedule=config.schedule,
        input_shape=info.input_shape,
        num_classes=info.num_classes,
        num_outputs=info.num_outputs,
    )
    if config.checkpoint is None:
        _begin(config, blueprint, paths.learner)
    elif origin is None or not origin.exists():
        raise CheckpointError(
            f"build_learner.checkpoint: {config.checkpoint} is not there: see that its path is right, or null"
        )
    else:
        _go_on(config, blueprint, paths.learner, origin)
    blueprint.write(paths.learner)


def _begin(config: BuildLearnerConfig, blueprint: "learner.Blueprint", target: Path) -> None:
    model, optimizer, scheduler = blueprint.build(config.seed)
    builder = learner.LearnerBuilder(target).renderer(renderers.PlainRenderer())
    builder = builder.devices(["cpu"]).with_file_checkpointer(records.DefaultRecorder())
    builder.build(model, optimizer, scheduler).save()


def _go_on(config: BuildLearnerConfig, blueprint: "learner.Blueprint", target: Path, origin: Path) -> None:
    """Write what the run goes on from: logs, earlier checkpoints, and, last, the one of the epoch itself.

    Nothing is written where that does not fit.
    """
    there = checkpoints.FileCheckpointer(_folder(origin), records.DefaultRecorder())
    start, epoch = blueprint.build(config.seed), config.checkpoint.epoch or 0 if config.checkpoint else 0
    is_ours = origin.is_dir() and bool(there.saved())
    made = _of_ours(config, start, there) if is_ours else _of_burns(config, start, origin, epoch)
    shutil.rmtree(target, ignore_errors=True)
    _copy_logs(_root(origin), target, epoch)
    if is_ours:
        _copy_earlier(there, target / "checkpoint", epoch)
    checkpoints.FileCheckpointer(target / "checkpoint", records.DefaultRecorder()).save(epoch, made)


def _of_ours(
    config: BuildLearnerConfig, start: "learner.Start", there: "checkpoints.FileCheckpointer"
) -> "checkpoints.Checkpoint":
    wanted = config.checkpoint
    if wanted is None or wanted.epoch not in there.saved():
        raise CheckpointError(
            f"build_learner.checkpoint: {wanted} has no such checkpoint; there are those of epoch "
            f"{', '.join(map(str, there.saved()))}"
        )
    found = there.restore(wanted.epoch)
    if wanted.weights_only:
        sys.stdout.write(f"going on after {wanted}, with its weights: optimizer and schedule start anew\n")
        return learner.with_weights_of(start, found, str(wanted))
    sys.stdout.write(f"going on after {wanted}\n")
    return learner.continued(start, found, str(wanted))


def _of_burns(
    config: BuildLearnerConfig, start: "learner.Start", origin: Path, epoch: int
) -> "checkpoints.Checkpoint":
    """From a record with nothing of ours beside it: the weights, and what else there is."""
    model_file = origin if origin.is_file() else _model_file(_folder(origin), epoch)
    beside = model_file.with_name(model_file.name.replace("model", "optim", 1))
    is_wanted = epoch and config.checkpoint and not config.checkpoint.weights_only
    optimizer_file = beside if is_wanted and beside.is_file() else None
    history = loggers.read_history(_root(origin)) if epoch else ()
    past = learner.Past(epoch, History(each for each in history if each.epoch <= epoch), config.seed)
    limit = config.checkpoint.limit if config.checkpoint else None
    made, said = learner.with_record(start, model_file, optimizer_file, past=past, limit=limit)
    sys.stdout.write(f"going on after {model_file}: {said}\n")
    return made


def _folder(origin: Path) -> Path:
    """Where the checkpoints are."""
    if origin.is_file():
        return origin.parent
    return origin / "checkpoint" if (origin / "checkpoint").is_dir() else origin


def _root(origin: Path) -> Path:
    """Where the logs are."""
    folder = _folder(origin)
    return folder.parent if folder.name == "checkpoint" else folder


def _model_file(folder: Path, epoch: int) -> Path:
    """The record of the model of *epoch* in a directory that Burn wrote."""
    found = sorted(folder.glob(f"model-{epoch}.*")) if epoch else []
    if len(found) == 1:
        return found[0]
    there = ", ".join(sorted(path.name for path in found or folder.glob("model*"))) or "none"
    raise CheckpointError(
        f"build_learner.checkpoint: {folder} is a directory, so say which epoch, of which it has one record "
        f"model-<epoch>; there: {there}. The path may name a record too"
    )


def _copy_logs(root: Path, target: Path, epoch: int) -> None:
    for split in Split:
        for number in range(1, epoch + 1):
            for path in sorted((root / split / f"epoch-{number}").glob("*")):
                if path.is_file():
                    runs.copy_whole(path, target / path.relative_to(root))


def _copy_earlier(there: "checkpoints.FileCheckpointer", target: Path, epoch: int) -> None:
    """The checkpoints before *epoch* as they are, as one of them may be the best."""
    for number in there.saved():
        if 0 < number < epoch:
            for path in sorted(there.directory.glob(f"*-{number}.*")):
                runs.copy_whole(path, target / path.name)
