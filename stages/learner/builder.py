"""LearnerBuilder: every part of a run, by Burn's names."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

import torch
from torch import nn

from stages.checkpoints import Retention
from stages.contracts.errors import BuilderError
from stages.contracts.events import MetricLogger, Renderer
from stages.contracts.history import Split
from stages.contracts.interrupter import Interrupter
from stages.learner import defaults
from stages.learner.assembly import Chosen, assembled
from stages.learner.checks import check_name
from stages.learner.learner import Learner
from stages.learner.meter import Registered
from stages.learner.stopping import EarlyStopping
from stages.metrics import Metric, StepMetric
from stages.optim import (
    Accumulation,
    Clipping,
    LrScheduler,
    NonFinite,
    OptimizerConfig,
)
from stages.records import HalfPrecision, Recorder

log = logging.getLogger(__name__)

AnyMetric = Metric | StepMetric


class LearnerBuilder:
    """Puts a `Learner` together; everything it writes goes under *directory*::

    learner = (
        LearnerBuilder("artifacts")
        .metrics(AccuracyMetric(), LossMetric())
        .with_file_checkpointer(NamedMpkGzFileRecorder())
        .num_epochs(10)
        .build(model, Adam(), 1e-3)
    )
    model = learner.fit(train, valid)
    """

    def __init__(self, directory: Path | str) -> None:
        self._chosen = Chosen(Path(directory))
        self._application_log: Callable[[], AbstractContextManager[object]] = self._file_log
        self._summary = False

    def metric_train(self, metric: AnyMetric) -> Self:
        """Show and log *metric* on the train split, without a curve or a row in the summary."""
        return self._register(Split.TRAIN, Registered(metric, numeric=False))

    def metric_valid(self, metric: AnyMetric) -> Self:
        """Show and log *metric* on the valid split, without a curve or a row in the summary."""
        return self._register(Split.VALID, Registered(metric, numeric=False))

    def metric_train_numeric(self, metric: AnyMetric) -> Self:
        """Follow *metric* on the train split: logs, curve and summary."""
        return self._register(Split.TRAIN, Registered(metric, numeric=True))

    def metric_valid_numeric(self, metric: AnyMetric) -> Self:
        """Follow *metric* on the valid split: logs, curve and summary."""
        return self._register(Split.VALID, Registered(metric, numeric=True))

    def metrics(self, *metrics: AnyMetric) -> Self:
        """Follow *metrics* on both splits, or in training only if they have ``train_only``."""
        for metric in metrics:
            self.metric_train_numeric(metric)
            if not getattr(metric, "train_only", False):
                self.metric_valid_numeric(metric)
        return self

    def metrics_text(self, *metrics: AnyMetric) -> Self:
        """Show and log *metrics* on both splits, or in training only if they have ``train_only``."""
        for metric in metrics:
            self.metric_train(metric)
            if not getattr(metric, "train_only", False):
                self.metric_valid(metric)
        return self

    def metric_loggers(self, train: MetricLogger, valid: MetricLogger) -> Self:
        """Log to these instead of to ``<directory>/train`` and ``<directory>/valid``."""
        self._chosen.loggers = {Split.TRAIN: [train], Split.VALID: [valid]}
        return self

    def renderer(self, renderer: Renderer) -> Self:
        """Show the run with *renderer*. Default: a live view on a terminal, a line an epoch elsewhere."""
        self._chosen.renderer = renderer
        return self

    def with_progress_logger(self, logger: Renderer) -> Self:
        """Tell *logger* of the progress too, beside the renderer."""
        self._chosen.progress_loggers.append(logger)
        return self

    def with_application_logger(self, installer: Callable[[], AbstractContextManager[object]] | None) -> Self:
        """Enter what *installer* returns for as long as the run lasts; None leaves `logging` alone.

        Default: all records from INFO on go to ``<directory>/experiment.log``.
        """
        self._application_log = installer or nullcontext
        return self

    def num_epochs(self, num_epochs: int) -> Self:
        """How many epochs the run has in all, those before a resume included. Default 1."""
        if num_epochs < 1:
            raise BuilderError(f"num_epochs({num_epochs}): a run has at least one epoch")
        self._chosen.num_epochs = num_epochs
        return self

    def devices(self, devices: Sequence[str | torch.device]) -> Self:
        """Train on these: ``auto`` (the default, the best there is), ``cpu``, ``cuda:0``, ``mps``.

        With more than one, each has a batch at a time and all of them make one update, as if they were
        accumulated. The model and the validation are on the first.
        """
        if isinstance(devices, str) or not devices:
            raise BuilderError(f"devices({devices!r}): a list of devices, as in ['cuda:0']")
        self._chosen.devices = devices
        return self

    def grads_accumulation(self, batches: int, *, reduction: str = "mean", leftover: str = "flush") -> Self:
        """One step of the optimizer for this many *batches*, as if they were one. Default 1.

        With ``mean`` every sample weighs the same; Burn's ``sum`` adds up the batches' means. What is left
        at the end of an epoch is applied (``flush``), dropped as in Burn (``drop``), or carried over.
        """
        if batches < 1:
            raise BuilderError(f"grads_accumulation({batches}): at least one batch a step")
        self._chosen.accumulation = Accumulation.model_validate(
            {"batches": batches, "reduction": reduction, "leftover": leftover}
        )
        return self

    def non_finite(self, rule: NonFinite) -> Self:
        """What to do about NaN or infinity in loss or gradients. Default: stop before the weights change."""
        self._chosen.non_finite = rule
        return self

    def grad_clipping(self, clipping: Clipping) -> Self:
        """Keep gradients small: each tensor by value or norm, as Burn does, or all by their common norm.

        Default: what the optimizer's config says.
        """
        self._chosen.clipping = clipping
        return self

    def gradient_checkpointing(self) -> Self:
        """Compute activations again in the backward pass instead of keeping them: less memory, more time."""
        self._chosen.recompute = True
        return self

    def with_file_checkpointer(self, recorder: Recorder) -> Self:
        """Write a checkpoint of every epoch to ``<directory>/checkpoint``. Default: none."""
        if recorder.precision is HalfPrecision:
            log.warning("checkpoints in half precision: a resumed run will not equal an unbroken one")
        self._chosen.recorder = recorder
        return self

    def checkpoint_every(self, *, steps: int | None = None, seconds: float | None = None) -> Self:
        """Write a checkpoint in the middle of an epoch too, of which the newest stays. Default: none.

        A run that is asked to stop writes one in any case, if it has a checkpointer.
        """
        self._chosen.saving = replace(self._chosen.saving, every_steps=steps, every_seconds=seconds)
        return self

    def max_unsaved(self, seconds: float) -> Self:
        """End a run whose checkpoints cannot be written for longer than this. Default: never."""
        self._chosen.saving = replace(self._chosen.saving, max_unsaved_seconds=seconds)
        return self

    def identity(self, identity: str) -> Self:
        """Have checkpoints carry *identity*, and refuse to go on from those that carry another."""
        self._chosen.identity = identity
        return self

    def with_checkpointing_strategy(self, strategy: Retention) -> Self:
        """Which checkpoints stay beside the newest. Default: the last two and the best by validation loss."""
        self._chosen.retention = strategy
        return self

    def early_stopping(self, strategy: EarlyStopping) -> Self:
        """Stop when *strategy* says so. Default: never."""
        self._chosen.stopping = strategy
        return self

    def interrupter(self) -> Interrupter:
        """The handle that stops this run after the step it is in, from any thread."""
        self._chosen.interrupter = self._chosen.interrupter or Interrupter()
        return self._chosen.interrupter

    def with_interrupter(self, interrupter: Interrupter) -> Self:
        """Listen to a handle that exists already."""
        self._chosen.interrupter = interrupter
        return self

    def checkpoint(self, epoch: int | Literal["auto"]) -> Self:
        """Go on after *epoch*, from its checkpoint in ``<directory>/checkpoint``.

        Checkpoints and logs of later epochs are of another run then, and go when the next epoch is done.
        ``"auto"`` goes on from the newest checkpoint that is whole, in the middle of an epoch too, and
        starts where there is none yet.
        """
        self._chosen.checkpoint = epoch
        return self

    def seed(self, seed: int) -> Self:
        """What the random state of each epoch is derived from.

        Default: that of the checkpoint, or else ``torch.initial_seed()`` when the run begins.
        """
        self._chosen.seed = seed
        return self

    def summary(self) -> Self:
        """Print the table of lowest and highest values at the end."""
        self._summary = True
        return self

    def build(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | OptimizerConfig,
        lr: float | LrScheduler | torch.optim.lr_scheduler.LRScheduler | None = None,
    ) -> Learner:
        """Return the learner, its model on the device and, if a checkpoint is named, restored from it.

        *model* may be the result of `torch.compile`: its ``forward`` then runs compiled, and the learner's
        model is the one inside. *optimizer* is torch's own over the model's parameters, or a config; *lr* is
        a rate, a scheduler (ours or torch's), or None for the rates of the optimizer's groups, which may
        change during training; a checkpoint restores them. Raises `BuilderError` or `CheckpointError` if the
        learner cannot work.
        """
        return Learner(
            assembled(self._chosen, model, optimizer, lr), self._application_log, summary=self._summary
        )

    def _register(self, split: Split, registered: Registered) -> Self:
        check_name(registered, self._chosen.metrics[split], f"the {split} split")
        self._chosen.metrics[split].append(registered)
        return self

    def _file_log(self) -> AbstractContextManager[object]:
        return defaults.application_log(self._chosen.directory / "experiment.log")
