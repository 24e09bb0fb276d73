"""LearnerBuilder: every part of a run, by Burn's names."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import nn

from stages.checkpoints import Retention
from stages.contracts.errors import BuilderError
from stages.contracts.events import MetricLogger, Renderer
from stages.contracts.history import Split
from stages.contracts.interrupter import Interrupter
from stages.learner.assembly import assemble
from stages.learner.checks import check_unique_name
from stages.learner.early_stopping import EarlyStopping
from stages.learner.learner import Learner
from stages.learner.metering import RegisteredMetric
from stages.learner.options import LearnerOptions
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
        self._options = LearnerOptions(Path(directory))

    def metric_train(self, metric: AnyMetric) -> Self:
        """Show and log *metric* on the train split, without a curve or a row in the summary."""
        return self._register(Split.TRAIN, RegisteredMetric(metric, numeric=False))

    def metric_valid(self, metric: AnyMetric) -> Self:
        """Show and log *metric* on the valid split, without a curve or a row in the summary."""
        return self._register(Split.VALID, RegisteredMetric(metric, numeric=False))

    def metric_train_numeric(self, metric: AnyMetric) -> Self:
        """Follow *metric* on the train split: logs, curve and summary."""
        return self._register(Split.TRAIN, RegisteredMetric(metric, numeric=True))

    def metric_valid_numeric(self, metric: AnyMetric) -> Self:
        """Follow *metric* on the valid split: logs, curve and summary."""
        return self._register(Split.VALID, RegisteredMetric(metric, numeric=True))

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
        return self._set(loggers={Split.TRAIN: [train], Split.VALID: [valid]})

    def renderer(self, renderer: Renderer) -> Self:
        """Show the run with *renderer*. Default: a live view on a terminal, a line an epoch elsewhere."""
        return self._set(renderer=renderer)

    def with_progress_logger(self, logger: Renderer) -> Self:
        """Tell *logger* of the progress too, beside the renderer."""
        return self._set(progress_loggers=(*self._options.progress_loggers, logger))

    def with_application_logger(self, installer: Callable[[], AbstractContextManager[object]] | None) -> Self:
        """Enter what *installer* returns for as long as the run lasts; None leaves `logging` alone.

        Default: all records from INFO on go to ``<directory>/experiment.log``.
        """
        return self._set(application_log=installer or nullcontext)

    def num_epochs(self, num_epochs: int) -> Self:
        """How many epochs the run has in all, those before a resume included. Default 1."""
        if num_epochs < 1:
            raise BuilderError(f"num_epochs({num_epochs}): a run has at least one epoch")
        return self._set(num_epochs=num_epochs)

    def devices(self, devices: Sequence[str | torch.device]) -> Self:
        """Train on these: ``auto`` (the default, the best there is), ``cpu``, ``cuda:0``, ``mps``.

        With more than one, each has a batch at a time and all of them make one update, as if they were
        accumulated. The model and the validation are on the first.
        """
        if isinstance(devices, str) or not devices:
            raise BuilderError(f"devices({devices!r}): a list of devices, as in ['cuda:0']")
        return self._set(devices=devices)

    def grads_accumulation(self, batches: int, *, reduction: str = "mean", leftover: str = "flush") -> Self:
        """One step of the optimizer for this many *batches*, as if they were one. Default 1.

        With ``mean`` every sample weighs the same; Burn's ``sum`` adds up the batches' means. What is left
        at the end of an epoch is applied (``flush``), dropped as in Burn (``drop``), or carried over.
        """
        if batches < 1:
            raise BuilderError(f"grads_accumulation({batches}): at least one batch a step")
        return self._set(
            accumulation=Accumulation.model_validate(
                {"batches": batches, "reduction": reduction, "leftover": leftover}
            )
        )

    def non_finite(self, rule: NonFinite) -> Self:
        """What to do about NaN or infinity in loss or gradients. Default: stop before the weights change."""
        return self._set(non_finite=rule)

    def grad_clipping(self, clipping: Clipping) -> Self:
        """Keep gradients small: each tensor by value or norm, as Burn does, or all by their common norm.

        Default: what the optimizer's config says.
        """
        return self._set(clipping=clipping)

    def gradient_checkpointing(self) -> Self:
        """Compute activations again in the backward pass instead of keeping them: less memory, more time."""
        return self._set(gradient_checkpointing=True)

    def with_file_checkpointer(self, recorder: Recorder) -> Self:
        """Write a checkpoint of every epoch to ``<directory>/checkpoint``. Default: none."""
        if recorder.precision is HalfPrecision:
            log.warning("checkpoints in half precision: a resumed run will not equal an unbroken one")
        return self._set(recorder=recorder)

    def checkpoint_every(self, *, steps: int | None = None, seconds: float | None = None) -> Self:
        """Write a checkpoint in the middle of an epoch too, of which the newest stays. Default: none.

        A run that is asked to stop writes one in any case, if it has a checkpointer.
        """
        interval = replace(self._options.interval, every_steps=steps, every_seconds=seconds)
        return self._set(interval=interval)

    def max_unsaved(self, seconds: float) -> Self:
        """End a run whose checkpoints cannot be written for longer than this. Default: never."""
        return self._set(interval=replace(self._options.interval, max_unsaved_seconds=seconds))

    def identity(self, identity: str) -> Self:
        """Have checkpoints carry *identity*, and refuse to go on from those that carry another."""
        return self._set(identity=identity)

    def with_checkpointing_strategy(self, strategy: Retention) -> Self:
        """Which checkpoints stay beside the newest. Default: the last two and the best by validation loss."""
        return self._set(retention=strategy)

    def early_stopping(self, strategy: EarlyStopping) -> Self:
        """Stop when *strategy* says so. Default: never."""
        return self._set(early_stopping=strategy)

    def interrupter(self) -> Interrupter:
        """The handle that stops this run after the step it is in, from any thread."""
        interrupter = self._options.interrupter or Interrupter()
        self._set(interrupter=interrupter)
        return interrupter

    def with_interrupter(self, interrupter: Interrupter) -> Self:
        """Listen to a handle that exists already."""
        return self._set(interrupter=interrupter)

    def checkpoint(self, epoch: int | Literal["auto"]) -> Self:
        """Go on after *epoch*, from its checkpoint in ``<directory>/checkpoint``.

        Checkpoints and logs of later epochs are of another run then, and go when the next epoch is done.
        ``"auto"`` goes on from the newest checkpoint that is whole, in the middle of an epoch too, and
        starts where there is none yet.
        """
        return self._set(checkpoint=epoch)

    def seed(self, seed: int) -> Self:
        """What the random state of each epoch is derived from.

        Default: that of the checkpoint, or else ``torch.initial_seed()`` when the run begins.
        """
        return self._set(seed=seed)

    def summary(self) -> Self:
        """Print the table of lowest and highest values at the end."""
        return self._set(summary=True)

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
        return Learner(assemble(self._options, model, optimizer, lr))

    def _set(self, **options: Any) -> Self:
        self._options = replace(self._options, **options)
        return self

    def _register(self, split: Split, registered: RegisteredMetric) -> Self:
        metrics = self._options.metrics
        check_unique_name(registered, metrics[split], f"the {split} split")
        return self._set(metrics={**metrics, split: (*metrics[split], registered)})
