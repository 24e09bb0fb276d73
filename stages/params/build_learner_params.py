"""Config and paths of the stage build-learner."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import field_validator, model_validator

from stages.contracts.config import Config
from stages.contracts.errors import ParamsError
from stages.contracts.fields import (
    OPTIONAL,
    Bytes,
    ClassWeights,
    Count,
    Decay,
    Flag,
    Patterns,
    Renames,
    Seed,
    Text,
)
from stages.models.config import CnnConfig, ModelConfig
from stages.optim.config import Adam, OptimizerConfig, ParameterGroup, check_groups
from stages.optim.schedules import Constant, ScheduleConfig

OF_WEIGHTS = ("key", "layout", "prefix", "rename", "only", "skip", "strict")
"""Keys of `CheckpointConfig` that apply to a file of weights only."""


class CheckpointConfig(Config):
    """A checkpoint that a run starts from: of a revision of this project, or at a path."""

    rev: Text | None = None
    """The full SHA of a commit or an experiment whose outputs DVC tracks; ``learner resume`` writes it."""
    path: Text | None = None
    """An artifact directory or its checkpoints, of this project or of Burn, or a file of weights.

    A file of weights is a record of a model, a ``.pt`` or ``.pth`` file with a state dict, of which no code
    is executed, or a ``.safetensors.index.json`` file beside its shards.

    Of files that this project did not write, only the weights are certain to be restored.
    """
    epoch: Count | None = None
    """The epoch to start after; null, for a record: its weights start a run at epoch 0."""
    weights_only: Flag = False
    """Restore weights, history and number of epochs only; optimizer and schedule start from the beginning."""
    limit: Bytes | None = None
    """Largest number of bytes of content in a record without a ``trainer-N``; null: the default limits.

    The default limits refuse a file that compresses more than 100 times and has more than 64 MiB of content.
    """

    key: Text | None = None
    """The entry of a ``.pt`` or ``.pth`` file that has the state dict, for example ``ema.model``; null: the
    file itself, or its entry ``state_dict``, ``model_state_dict`` or ``model``."""
    layout: Literal["burn", "torch"] | None = OPTIONAL
    """Whose names and axes the file has; null: those that it states, or else those that fit the model."""
    prefix: Text | None = None
    """Load only the names of the file that begin with this text, and remove it from them."""
    rename: Renames = ()
    """Pairs of a regular expression and its replacement, applied in order to the names after ``prefix``."""
    only: Patterns = ()
    """Load only the renamed tensors in whose name one of these regular expressions is found."""
    skip: Patterns = ()
    """Do not load the renamed tensors in whose name one of these regular expressions is found."""
    strict: Flag = True
    """Fail if a selected tensor is missing, unexpected or of another shape; false: load what fits."""

    @field_validator("rev")
    @classmethod
    def _check_rev(cls, rev: str | None) -> str | None:
        if rev is not None and not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", rev):
            raise ValueError(
                "must be a full SHA, since branches and tags move. Run "
                f"`learner resume {rev} --epoch N`, which writes it"
            )
        return rev

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.rev is None) == (self.path is None):
            raise ValueError("set either rev or path")
        if self.rev is not None and self.epoch is None:
            raise ValueError("set epoch too: a rev needs one")
        if self.rev is not None and self.selects:
            raise ValueError(
                f"set path to a file of weights instead of rev, which has no {', '.join(self.selects)}"
            )
        return self

    @property
    def selects(self) -> list[str]:
        """The keys of a file of weights that do not have their defaults."""
        changed = self.model_dump(include={*OF_WEIGHTS}, exclude_defaults=True)
        return [key for key in OF_WEIGHTS if key in changed]

    @property
    def is_of_weights(self) -> bool:
        """True if weights are selected, or if the file has PyTorch's format or shards."""
        return bool(self.selects) or str(self.path).endswith((".pt", ".pth", ".safetensors.index.json"))

    def __str__(self) -> str:
        owner = str(self.path) if self.rev is None else f"revision {self.rev[:12]}"
        return owner if self.epoch is None else f"epoch {self.epoch} of {owner}"


class BuildLearnerConfig(Config):
    """The section ``build_learner``."""

    seed: Seed = 42
    """Seed of the initial weights."""
    model: ModelConfig = CnnConfig()
    """A kind, or the import path of your own class with its arguments."""
    optimizer: OptimizerConfig = Adam()
    """A kind, or an import path such as ``torch.optim:Adam`` or ``my_lab.optim:Lion``, with its arguments.

    The kinds from ``adam`` to ``lbfgs`` have Burn's formulas; others take ``learning_rate`` for ``lr``.

    Each also takes ``clipping``, a limit of the gradients: ``{kind: value, value: 1}`` of each element,
    ``{kind: norm, max_norm: 1}`` of each tensor, or ``{kind: global_norm, max_norm: 1}``.
    """
    schedule: ScheduleConfig = Constant()
    """The learning rate schedule: a kind with Burn's formula, which also takes ``initial`` (default: the
    optimizer's learning rate), ``warmup``, and ``per``: ``batch`` (the default), ``update`` or ``epoch``. A
    number of steps may be a text such as ``10 %`` of the run or ``2 epochs``. Or a kind or an import path
    such as ``torch.optim.lr_scheduler:StepLR`` with the arguments of its class and ``per``, or for
    ``reduce_on_plateau`` with ``monitor``."""
    checkpoint: CheckpointConfig | None = None
    """The checkpoint to start from; null: new weights."""
    parameter_groups: tuple[ParameterGroup, ...] = ()
    """Options of the optimizer for some parameters: ``match``, one or several regular expressions that are
    searched for in their names, and options such as ``learning_rate`` and ``weight_decay``. The first group
    that matches applies. ``match: biases_and_norms`` selects the parameters of at most one dimension and
    those whose name ends in ``bias``. A schedule scales the rate of a group as it scales the optimizer's.
    """
    freeze: Patterns = ()
    """Parameters that are not trained: regular expressions, searched for in their names."""
    label_smoothing: Decay = 0.0
    """The share of each target that the default loss of a classifier spreads evenly over all classes."""
    class_weights: ClassWeights | None = None
    """A weight for each class in the default loss of a classifier, or ``balanced``: N / (C n) for a class
    with n of the N train samples, and C classes; null: 1 for each."""

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        try:
            check_groups(self.optimizer, self.parameter_groups)
        except ParamsError as error:
            raise ValueError(str(error)) from error
        return self


@dataclass(frozen=True)
class BuildLearnerPaths:
    """The paths that the stage reads and writes."""

    dataset: Path
    learner: Path
