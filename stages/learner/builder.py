"""LearnerBuilder: every part of a run, by Burn's names."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from stages.checkpoints import FileCheckpointer, Retention, default_retention
from stages.contracts.errors import BuilderError
from stages.contracts.events import MetricLogger, Renderer
from stages.contracts.history import Split
from stages.contracts.interrupter import Interrupter
from stages.learner import defaults
from stages.learner.checks import check_fed, check_model, check_name, check_needs, check_optimizer
from stages.learner.devices import find_device
from stages.learner.learner import Learner
from stages.learner.meter import Registered
from stages.learner.parts import Parts, Renderers, Watchers
from stages.learner.recompute import recompute_activations
from stages.learner.replicas import Replicas
from stages.learner.state import State
from stages.learner.stopping import EarlyStopping
from stages.metrics import Metric, StepMetric
from stages.optim import (
    Accumulation,
    Clipping,
    Guard,
    LrScheduler,
    NonFinite,
    OptimizerConfig,
    Window,
    as_scheduler,
    build_optimizer,
)
from stages.records import FullPrecision, Recorder

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
        self._directory = Path(directory)
        self._metrics: dict[Split, list[Registered]] = {split: [] for split in Split}
        self._loggers: dict[Split, list[MetricLogger]] = {}
        self._renderer: Renderer | None = None
        self._progress_loggers: list[Renderer] = []
        self._application_log: Callable[[], AbstractContextManager[object]] = self._file_log
        self._num_epochs = 1
        self._devices: Sequence[str | torch.device] = ["auto"]
        self._accumulation = Accumulation()
        self._non_finite = NonFinite()
        self._clipping: Clipping | None = None
        self._recompute = False
        self._checkpoint: int | None = None
        self._checkpointer: FileCheckpointer | None = None
        self._retention: Retention | None = None
        self._stopping: EarlyStopping | None = None
        self._interrupter: Interrupter | None = None
        self._seed: int | None = None
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
        """Follow *metrics* on both splits."""
        for metric in metrics:
            self.metric_train_numeric(metric).metric_valid_numeric(metric)
        return self

    def metrics_text(self, *metrics: AnyMetric) -> Self:
        """Show and log *metrics* on both splits."""
        for metric in metrics:
            self.metric_train(metric).metric_valid(metric)
        return self

    def metric_loggers(self, train: MetricLogger, valid: MetricLogger) -> Self:
        """Log to these instead of to ``<directory>/train`` and ``<directory>/valid``."""
        self._loggers = {Split.TRAIN: [train], Split.VALID: [valid]}
        return self

    def renderer(self, renderer: Renderer) -> Self:
        """Show the run with *renderer*. Default: a live view on a terminal, a line an epoch elsewhere."""
        self._renderer = renderer
        return self

    def with_progress_logger(self, logger: Renderer) -> Self:
        """Tell *logger* of the progress too, beside the renderer."""
        self._progress_loggers.append(logger)
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
        self._num_epochs = num_epochs
        return self

    def devices(self, devices: Sequence[str | torch.device]) -> Self:
        """Train on these: ``auto`` (the default, the best there is), ``cpu``, ``cuda:0``, ``mps``.

        With more than one, each has a batch at a time and all of them make one update, as if they were
        accumulated. The model and the validation are on the first.
        """
        if isinstance(devices, str) or not devices:
            raise BuilderError(f"devices({devices!r}): a list of devices, as in ['cuda:0']")
        self._devices = devices
        return self

    def grads_accumulation(self, batches: int, *, reduction: str = "mean", leftover: str = "flush") -> Self:
        """One step of the optimizer for this many *batches*, as if they were one. Default 1.

        With ``mean`` every sample weighs the same; Burn's ``sum`` adds up the batches' means. What is left
        at the end of an epoch is applied (``flush``), dropped as in Burn (``drop``), or carried over.
        """
        if batches < 1:
            raise BuilderError(f"grads_accumulation({batches}): at least one batch a step")
        self._accumulation = Accumulation.model_validate(
            {"batches": batches, "reduction": reduction, "leftover": leftover}
        )
        return self

    def non_finite(self, rule: NonFinite) -> Self:
        """What to do about NaN or infinity in loss or gradients. Default: stop before the weights change."""
        self._non_finite = rule
        return self

    def grad_clipping(self, clipping: Clipping) -> Self:
        """Keep gradients small: each tensor by value or norm, as Burn does, or all by their common norm.

        Default: what the optimizer's config says.
        """
        self._clipping = clipping
        return self

    def gradient_checkpointing(self) -> Self:
        """Compute activations again in the backward pass instead of keeping them: less memory, more time."""
        self._recompute = True
        return self

    def with_file_checkpointer(self, recorder: Recorder) -> Self:
        """Write a checkpoint of every epoch to ``<directory>/checkpoint``. Default: none."""
        if recorder.precision is not FullPrecision:
            log.warning("checkpoints in half precision: a resumed run will not equal an unbroken one")
        self._checkpointer = FileCheckpointer(self._directory / "checkpoint", recorder)
        return self

    def with_checkpointing_strategy(self, strategy: Retention) -> Self:
        """Which checkpoints stay beside the newest. Default: the last two and the best by validation loss."""
        self._retention = strategy
        return self

    def early_stopping(self, strategy: EarlyStopping) -> Self:
        """Stop when *strategy* says so. Default: never."""
        self._stopping = strategy
        return self

    def interrupter(self) -> Interrupter:
        """The handle that stops this run after the step it is in, from any thread."""
        self._interrupter = self._interrupter or Interrupter()
        return self._interrupter

    def with_interrupter(self, interrupter: Interrupter) -> Self:
        """Listen to a handle that exists already."""
        self._interrupter = interrupter
        return self

    def checkpoint(self, epoch: int) -> Self:
        """Go on after *epoch*, from its checkpoint in ``<directory>/checkpoint``.

        Checkpoints and logs of later epochs are of another run then, and go when the next epoch is done.
        """
        self._checkpoint = epoch
        return self

    def seed(self, seed: int) -> Self:
        """What the random state of each epoch is derived from.

        Default: that of the checkpoint, or else ``torch.initial_seed()`` when the run begins.
        """
        self._seed = seed
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
        """The learner, its model on the device and, where a checkpoint was named, restored from it.

        *optimizer* is torch's own over the model's parameters, or a config; *lr* a rate, a scheduler (ours
        or torch's), or nothing for the optimizer's own rate. Raises `BuilderError` or `CheckpointError` for
        what could not work.
        """
        self._check(model)
        devices = [find_device(device) for device in self._devices]
        model = model.to(devices[0])
        replicas = Replicas(model, devices)
        if self._recompute:
            replicas.each(recompute_activations)
        clipping = self._clipping or getattr(optimizer, "clipping", None)
        if not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = build_optimizer(optimizer, model.parameters())
        check_optimizer(optimizer, model, batches_a_step=self._accumulation.batches * len(devices))
        scheduler = as_scheduler(optimizer, lr)
        check_needs(scheduler, self._metrics)
        parts = Parts(
            state=State(model, optimizer, scheduler, clipping),
            num_epochs=self._num_epochs,
            seed=self._seed,
            replicas=replicas,
            window=Window.of(self._accumulation, len(devices)),
            guard=Guard(self._non_finite, [name for name, _ in model.named_parameters()]),
            watchers=self._watchers(),
            interrupter=self._interrupter or Interrupter(),
            checkpointer=self._checkpointer,
            retention=self._retention or default_retention(),
            stopping=self._stopping,
        )
        if self._checkpoint is not None:
            parts.restore(self._checkpoint)
        return Learner(parts, self._application_log, summary=self._summary)

    def _check(self, model: Any) -> None:
        check_model(model)
        check_fed(model, self._metrics)
        check_needs(self._stopping, self._metrics)
        check_needs(self._retention, self._metrics)
        if self._checkpoint is not None and self._checkpointer is None:
            raise BuilderError(
                f"checkpoint({self._checkpoint}) needs a checkpointer to read with: "
                "call with_file_checkpointer first"
            )

    def _register(self, split: Split, registered: Registered) -> Self:
        check_name(registered, self._metrics[split], f"the {split} split")
        self._metrics[split].append(registered)
        return self

    def _watchers(self) -> Watchers:
        renderer = self._renderer or defaults.renderer()
        return Watchers(
            metrics={split: list(metrics) for split, metrics in self._metrics.items()},
            loggers=self._loggers or defaults.file_loggers(self._directory),
            telemetry=self._loggers or defaults.file_loggers(self._directory / "telemetry"),
            renderer=Renderers([renderer, *self._progress_loggers]) if self._progress_loggers else renderer,
        )

    def _file_log(self) -> AbstractContextManager[object]:
        return defaults.application_log(self._directory / "experiment.log")
