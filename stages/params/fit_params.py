"""The section fit of params.yaml, and the other arguments of the stage."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from operator import not_
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from stages import distributed
from stages.contracts.burn import Version
from stages.contracts.config import Config, Use
from stages.contracts.events import Interrupter, Renderer
from stages.contracts.fields import (
    MAX_COUNT,
    OPTIONAL,
    Compile,
    Count,
    CountFromZero,
    Devices,
    FastPath,
    Flag,
    Precision,
    Prefetch,
    Resident,
    Seconds,
    Seed,
    StepKind,
    Steps,
    Strategy,
    Threads,
    Workers,
    describe_portable_conflict,
)
from stages.contracts.plugins import name_validator
from stages.data.config import AugmentationConfig, BatcherConfig
from stages.loggers.config import LoggerConfig
from stages.metrics.registry import MetricConfig, TelemetryConfig
from stages.optim.config import Averaging, NonFinite
from stages.optim.gradients import Accumulation
from stages.records.config import RecorderConfig
from stages.runs.retention import Keep, MetricEarlyStopping

HOOKS = {
    "frozen_norms": "stages.learner.hooks:FrozenNorms",
    "schedule_free": "stages.learner.hooks:ScheduleFree",
    "unfreeze": "stages.learner.hooks:Unfreeze",
}
"""The import path of each built-in hook by its name in params."""
HookConfig = Annotated[Use, AfterValidator(name_validator("hook", HOOKS))]
CHANGES_NO_NUMBER = {
    "num_epochs",
    "num_workers",
    "device",
    "strategy",
    "max_restarts",
    "rank_timeout_seconds",
    "checkpoint_every_steps",
    "checkpoint_every_seconds",
    "max_unsaved_seconds",
    "telemetry",
    "loggers",
    "fast_path",
    "step",
    "prefetch",
    "resident",
    "sanity_check",
}
"""Params that are not part of a run's key: a run resumes with other values of them.

``device`` changes rounding only, except that each rank draws the random numbers of its share of a batch.
"""


class BatchLimits(Config):
    """The maximum number of batches in an epoch of each split; one number is that of both."""

    train: Count | None = None
    """null: all batches."""
    valid: Count | None = None
    """null: all batches."""

    def of(self, split: str) -> int | None:
        """Return the maximum of *split*; None without one, as the test split has."""
        return {"train": self.train, "valid": self.valid}.get(split)

    @model_validator(mode="before")
    @classmethod
    def _accept_number(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        if not (1 <= value <= MAX_COUNT and value == int(value)):
            raise ValueError(f"must be an integer from 1 to {MAX_COUNT}, or a mapping with train and valid")
        return {"train": value, "valid": value}


class FitConfig(Config):
    """The section ``fit``."""

    num_epochs: Count = 10
    """Number of passes over the train split."""
    batch_size: Count = 64
    """Number of samples in a batch; the last batch of an epoch may have fewer."""
    batcher: BatcherConfig = Use(kind="normalize")
    """A kind, or the import path of a function of the items, such as a ``collate_fn`` of PyTorch, or of a
    class with ``batch(items)``. ``pad`` is for sequences of different lengths, and the ``mean`` and ``std``
    of ``normalize`` are by default those of the train split."""
    bucket: Flag = False
    """Combine sequences of similar length to a batch, so that little is padded. It changes the order."""
    augment: tuple[AugmentationConfig, ...] = ()
    """Random changes of the inputs of the train split, in order, before they are normalized: kinds for
    images, or import paths of functions of an input, or of classes of such."""
    views: Annotated[Count, Field(exclude_if=lambda views: views == 1)] = 1  # in no key of an earlier run
    """Number of views of the inputs of a sample, each augmented by itself; the inputs of a batch are then a
    tuple. Above 1, the other splits are augmented too."""
    limit_batches: BatchLimits = BatchLimits()
    """``{train: N, valid: N}``, or one number for both: the first N batches of each epoch only.

    The train split is shuffled before, so that an epoch has other samples than the one before.
    """
    overfit_batches: Count | None = None
    """Train on the same first N batches of the train split in every epoch, and validate on them too.

    They are neither shuffled nor augmented, and ``limit_batches`` has no effect. A model that cannot fit them
    has a mistake. null: train on all batches.
    """
    validate_every: Count = 1
    """Validate after each epoch whose number is a multiple of this one; the best epoch is one of them."""
    sanity_check: CountFromZero = 0
    """Batches of the valid split that are validated before the first epoch of a new run, to find a mistake.

    It changes no number.
    """
    num_workers: Workers = 4
    """Processes that prepare batches; 0 prepares them in the training process, enough for data in memory.

    It changes no number.
    """
    prefetch: Prefetch = 2
    """Batches that are copied to an accelerator before they are used; 0 for none. It changes no number."""
    resident: Resident = "auto"
    """True to keep the data on an accelerator; ``auto``: each split that takes < 25 % of the free memory."""
    seed: Seed = 42
    """Seed of the order of samples and of random layers such as dropout."""
    device: Devices = "auto"
    """``auto``, ``cpu``, ``cuda:0``, ``mps``, ``all`` accelerators of this machine, or a list such as
    ``["cuda:0", "cuda:1"]``.

    Each entry of a list is a rank: a process that computes its share of every batch. ``[cpu, cpu]`` is two
    processes. The numbers of a run are those of one device up to rounding, so a run resumes on other devices,
    which a warning reports; random layers such as dropout draw other numbers on each rank.
    """
    strategy: Strategy = "auto"
    """``ddp``: each rank has all parameters, and the ranks add their gradients; ``auto`` is ``ddp``.

    ``fsdp``: each rank has a part of every parameter and of the state of the optimizer, and gathers those of
    a layer while it runs (PyTorch's FSDP2), for models that do not fit one device. One device ignores it.
    """
    sync_batch_norm: Flag = False
    """On several accelerators, normalize by the statistics of the batch, not of each rank's share."""
    max_restarts: CountFromZero = 0
    """How often all ranks start again, from the newest checkpoint, after one of them has failed."""
    rank_timeout_seconds: Seconds = 600.0
    """The longest time that a rank waits for another one in a step before the run fails."""
    num_threads: Threads | None = None
    """torch's threads on a CPU; null keeps torch's choice, which may round differently on another machine."""
    grads_accumulation: Accumulation = Accumulation()
    """Batches per optimizer step, how their gradients are combined, and what happens to a partial window."""
    deterministic: Flag = False
    """Make accelerators compute the same bits each time, which is slower; a CPU always does."""
    portable: Flag = False
    """Compute the same bits on every x86-64 CPU with AVX2, in about 1.5 times the time.

    It needs ``num_threads``, precision ``f32``, no ``compile``, and an optimizer that computes no
    `torch.sqrt`, such as ``adam``, ``adamw``, ``sgd`` or ``muon``. On an accelerator, or on a machine of
    another architecture, it has no effect but a warning.
    """
    precision: Precision = "f32"
    """``f32`` (IEEE), ``tf32`` (CUDA), ``bf16`` or ``fp16``; weights and records are float32 in each."""
    compile: Compile = False
    """True to compile the model with `torch.compile`, or ``max-autotune-no-cudagraphs``; takes minutes."""
    fast_path: FastPath = "auto"
    """``auto`` calls the fused kernel of the optimizer directly, ``off`` its ``step``; the bits are equal."""
    step: StepKind = "auto"
    """``auto`` captures training steps in a CUDA graph if possible, ``captured`` warns if not; or ``eager``.

    It changes no number.
    """
    averaging: Averaging | None = None
    """Average of the weights that is validated and saved, while the training continues with its own weights;
    null: none."""
    hooks: tuple[HookConfig, ...] = Field(default=(), exclude_if=not_)  # so that it changes no earlier key
    """Objects that act on the model and the optimizer between steps, in order: kinds, or import paths of your
    own classes."""
    gradient_checkpointing: Flag = False
    """Compute activations twice instead of keeping them: less memory, more time, the same numbers."""
    non_finite: NonFinite = NonFinite()
    """Rule for a NaN or infinity in the loss or the gradients."""
    early_stopping: MetricEarlyStopping | None = None
    """Rule for stopping before ``num_epochs``; null: never."""
    keep: Keep = Keep()
    """Checkpoints to keep."""
    burn: Annotated[
        Version | None,
        BeforeValidator(lambda value: str(value) if isinstance(value, float) else value),
    ] = OPTIONAL  # so that it changes no key of an earlier run
    """The version of Burn, ``0.21`` or ``0.22``, whose log lines, steps of a schedule, and metrics a run has.

    null: 0.22 with ``recorder: burnpack``; otherwise the defaults of this project.
    """
    recorder: RecorderConfig = RecorderConfig()
    """Format of model, optimizer and scheduler in checkpoints; in half precision no resume is exact."""
    checkpoint_every_steps: Steps | None = None
    """Batches between two checkpoints within an epoch, of which the newest is kept; null: by time only."""
    checkpoint_every_seconds: Seconds | None = 300.0
    """Seconds between two checkpoints within an epoch; null: none. A stop request always saves one."""
    max_unsaved_seconds: Seconds = 3600.0
    """Longest time without a checkpoint, for example because the disk is full, before the run fails."""
    metrics: tuple[MetricConfig, ...] = (Use(kind="loss"), Use(kind="accuracy"))
    """The metrics of both splits: kinds, or import paths of your own classes."""
    telemetry: tuple[TelemetryConfig, ...] = (
        Use(kind="iteration_speed"),
        Use(kind="data_wait"),
        Use(kind="peak_memory"),
    )
    """Metrics of the clock or the machine; ``utilization`` needs the extra ``nvidia``.

    They are shown, and logged to ``telemetry/train`` and ``valid`` in the artifact directory, which DVC does
    not track. They change no number, so a run resumes with others. Those that ``metrics`` has too are
    measured once.
    """
    loggers: tuple[LoggerConfig, ...] = ()
    """Loggers in addition to Burn's log files: kinds, or import paths of your own classes.

    Each writes to ``telemetry/<kind>/train`` and ``valid`` in the artifact directory, which DVC does not
    track. They change no number, so a run resumes with other loggers.
    """

    @model_validator(mode="after")
    def _check_portable(self) -> Self:
        conflict = describe_portable_conflict(
            num_threads=self.num_threads, precision=self.precision, compiles=bool(self.compile)
        )
        if self.portable and conflict:
            raise ValueError(conflict)
        return self

    def key_params(self) -> dict[str, Any]:
        """Return the params that can change a number, as plain values."""
        return self.model_dump(mode="json", exclude=CHANGES_NO_NUMBER)

    @property
    def max_checkpoints(self) -> int:
        """The most checkpoints that a run has on disk at once: those to keep, one more, and one of a step."""
        return min(self.keep.most, self.num_epochs) + 2


@dataclass(frozen=True)
class FitPaths:
    """The paths that the stage reads and writes."""

    artifacts: Path
    learner: Path
    """The directory that build-learner wrote."""
    data: Path
    checkpoint: Path
    train: Path
    valid: Path
    metrics: Path
    plots: Path
    iterations: Path
    """A directory in ``plots``, as ``confusion`` is a file in it."""
    confusion: Path
    runs: Path
    """The directory of the run stores."""

    @property
    def outputs(self) -> list[Path]:
        """The outputs that DVC tracks."""
        return [self.checkpoint, self.train, self.valid, self.plots, self.metrics]

    @property
    def telemetry_outputs(self) -> list[Path]:
        """The outputs with times in them, which DVC does not track."""
        return [self.artifacts / "telemetry", self.artifacts / "experiment.log"]


@dataclass(frozen=True)
class FitContext:
    """Arguments of the stage that come from its caller and not from params.yaml."""

    code: Mapping[str, Any] = field(default_factory=dict)
    """A hash for each further file that the run depends on, such as the code of the model."""
    recorded: str | None = None
    """The md5 of metrics.json in the run that dvc.lock records; None if it records none."""
    renderer: Renderer | None = None
    """Shows the run; None for the default of `LearnerBuilder`."""
    interrupter: Interrupter | None = None
    """Stops the run from outside."""
    group: "distributed.RankGroup" = field(default_factory=lambda: distributed.ONE_RANK)
    """The ranks that train together, of which this process is one; see `join_ranks`."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The params of all stages, for trackers."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Further facts about the run for trackers, such as the commit."""
    allowed: Collection[str] = ()
    """The import paths in load_data, whose code may be run to read samples when they are needed."""
    check_reads: Callable[[], None] = lambda: None
    """Raises an error, before the run is finished, if it has read a file that it does not depend on."""
