"""The options of a learner, and the loggers and the renderer that are used by default.

The learner imports neither loggers nor renderers. The defaults are looked up by name, as those of a user are.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

import torch

from stages.contracts.burn import Version, choose_version
from stages.contracts.events import Interrupter, MetricLogger, Renderer
from stages.contracts.fields import FastPath, StepKind, Strategy
from stages.contracts.history import History, Split
from stages.devices.compilation import CompileOptions
from stages.devices.compute_settings import ComputeSettings
from stages.learner.registered_metric import RegisteredMetric
from stages.optim import Accumulation, Averaging, Clipping, NonFinite
from stages.records import Recorder
from stages.runs import CheckpointStorage, Retention
from stages.runs.retention import EarlyStopping

EXPERIMENT_LOG = "experiment.log"
"""The default application log, in the directory of a run."""


@dataclass(frozen=True)
class CheckpointInterval:
    """The interval between two checkpoints within an epoch, and how long writing them may fail."""

    every_steps: int | None = None
    """Batches between two checkpoints; None for no limit."""
    every_seconds: float | None = None
    """Seconds between two checkpoints; None for no limit."""
    max_unsaved_seconds: float = math.inf
    """The run fails if no checkpoint could be written for longer than this."""

    @property
    def saves_within_epochs(self) -> bool:
        """True if checkpoints are written within an epoch also when the run is not interrupted."""
        return self.every_steps is not None or self.every_seconds is not None


@dataclass(frozen=True)
class LearnerOptions:
    """Everything that a `LearnerBuilder` collects, with its default."""

    directory: Path
    """The artifact directory."""
    metrics: Mapping[Split, Sequence[RegisteredMetric]] = field(
        default_factory=lambda: dict.fromkeys(Split, ())
    )
    loggers: Mapping[Split, Sequence[MetricLogger]] | None = None
    """None for log files in the directory."""
    additional_loggers: Mapping[Split, Sequence[MetricLogger]] = field(
        default_factory=lambda: dict.fromkeys(Split, ())
    )
    application_log: Callable[[], AbstractContextManager[object]] | None = None
    """Entered for the duration of the run; None for ``experiment.log`` in the directory."""
    renderer: Renderer | None = None
    """None for the default of the terminal."""
    progress_loggers: tuple[Renderer, ...] = ()
    label: str | None = None
    """The name of the run for renderers and progress loggers."""
    num_epochs: int = 1
    devices: Sequence[str | torch.device] = ("auto",)
    strategy: Strategy = "auto"
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    compile: CompileOptions | None = None
    """None to train without `torch.compile`, unless the model is compiled already."""
    fast_path: FastPath = "auto"
    step: StepKind = "auto"
    accumulation: Accumulation = field(default_factory=Accumulation)
    non_finite: NonFinite = field(default_factory=NonFinite)
    clipping: Clipping | None = None
    """None for the clipping of the optimizer's config."""
    averaging: Averaging | None = None
    """None to validate and save the weights of the training alone."""
    hooks: tuple[Any, ...] = ()
    """Objects with methods of `stages.learner.Hook`."""
    gradient_checkpointing: bool = False
    sync_batch_norm: bool = False
    checkpoint: int | Literal["auto"] | None = None
    """The epoch to resume after; ``auto`` for the newest intact checkpoint."""
    recorder: Recorder | None = None
    """None to write no checkpoints."""
    storage: CheckpointStorage | None = None
    """A further place for checkpoints; None for the directory alone."""
    burn: Version | None = None
    """None for 0.22 with burnpack, and the defaults of this project otherwise."""
    interval: CheckpointInterval = field(default_factory=CheckpointInterval)
    identity: str | None = None
    retention: Retention | None = None
    early_stopping: EarlyStopping | None = None
    interrupter: Interrupter | None = None
    sanity_check: int = 0
    """Batches of the valid split that are validated before the first epoch."""
    limit_batches: Mapping[Split, int] = field(default_factory=dict)
    """The largest number of batches in a pass over each split."""
    validate_every: int = 1
    """The number of epochs from one validation to the next."""
    seed: int | None = None
    summary: bool = False
    """True to print the summary after the run."""

    @property
    def burn_version(self) -> Version | None:
        """The version of Burn that the run follows; None for the defaults of this project."""
        return choose_version(self.burn, "" if self.recorder is None else self.recorder.suffix)

    def open_application_log(self) -> AbstractContextManager[object]:
        """Return the context in which log records are written to the application log."""
        if self.application_log is not None:
            return self.application_log()
        log: AbstractContextManager[object] = find_default("loggers:ExperimentLog")(
            self.directory / EXPERIMENT_LOG
        )
        return log


def find_default(path: str) -> Any:
    """Return the default logger or renderer at the import *path*; this part imports none of them itself."""
    return resolve_name(f"stages.{path}")


def read_directory_history(directory: Path) -> History:
    """Return the epoch values of the log files in *directory*."""
    history: History = find_default("loggers:read_history")(directory)
    return history


def default_metric_loggers(directory: Path) -> dict[Split, list[MetricLogger]]:
    """Return loggers that write Burn's log files, in a folder per split in *directory*."""
    file_logger = find_default("loggers:FileMetricLogger")
    return {split: [file_logger(directory / split)] for split in Split}
