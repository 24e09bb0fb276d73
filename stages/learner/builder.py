"""LearnerBuilder: every part of a run, by Burn's names."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from stages.checkpoints import FileCheckpointer, Retention, default_retention
from stages.contracts import plugins
from stages.contracts.errors import BuilderError
from stages.contracts.events import MetricLogger, Renderer
from stages.contracts.history import Split
from stages.learner.devices import find_device
from stages.learner.learner import Learner
from stages.learner.loop import Parts
from stages.learner.meter import Registered
from stages.learner.state import LrScheduler, State
from stages.metrics import Metric
from stages.optim import Adam, AdamW, Scheduler, Sgd, Window, build_optimizer
from stages.records import FullPrecision, Recorder

# The learner is handed its loggers and renderer; these names stand in where nobody hands it any.
DEFAULT_LOGGER = "stages.loggers:FileMetricLogger"
DEFAULT_RENDERER = "stages.renderers:default_renderer"

log = logging.getLogger(__name__)


class LearnerBuilder:
    """Puts a `Learner` together; everything it writes goes under *directory*::

    learner = (
        LearnerBuilder("artifacts")
        .metric_train_numeric(LossMetric())
        .metric_valid_numeric(LossMetric())
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
        self._num_epochs = 1
        self._device: str | torch.device = "auto"
        self._accumulation = 1
        self._checkpoint: int | None = None
        self._checkpointer: FileCheckpointer | None = None
        self._retention = default_retention()
        self._seed: int | None = None
        self._summary = False

    def metric_train(self, metric: Metric) -> Self:
        """Show and log *metric* on the train split, without a curve or a row in the summary."""
        return self._register(Split.TRAIN, Registered(metric, numeric=False))

    def metric_valid(self, metric: Metric) -> Self:
        """Show and log *metric* on the valid split, without a curve or a row in the summary."""
        return self._register(Split.VALID, Registered(metric, numeric=False))

    def metric_train_numeric(self, metric: Metric) -> Self:
        """Follow *metric* on the train split: logs, curve and summary."""
        return self._register(Split.TRAIN, Registered(metric, numeric=True))

    def metric_valid_numeric(self, metric: Metric) -> Self:
        """Follow *metric* on the valid split: logs, curve and summary."""
        return self._register(Split.VALID, Registered(metric, numeric=True))

    def metric_loggers(self, train: MetricLogger, valid: MetricLogger) -> Self:
        """Log to these instead of to ``<directory>/train`` and ``<directory>/valid``."""
        self._loggers = {Split.TRAIN: [train], Split.VALID: [valid]}
        return self

    def renderer(self, renderer: Renderer) -> Self:
        """Show the run with *renderer*. Default: a live bar on a terminal, a line an epoch elsewhere."""
        self._renderer = renderer
        return self

    def num_epochs(self, num_epochs: int) -> Self:
        """How many epochs the run has in all, those before a resume included. Default 1."""
        if num_epochs < 1:
            raise BuilderError(f"num_epochs({num_epochs}): a run has at least one epoch")
        self._num_epochs = num_epochs
        return self

    def devices(self, devices: Sequence[str | torch.device]) -> Self:
        """Train on this one device: ``auto`` (the default), ``cpu``, ``cuda:0`` or ``mps``."""
        if len(devices) != 1 or isinstance(devices, str):
            raise BuilderError(f"devices({devices!r}): a list of one device, as in ['cuda:0']")
        self._device = devices[0]
        return self

    def grads_accumulation(self, batches: int) -> Self:
        """One step of the optimizer for this many *batches*, as if they were one. Default 1.

        Every sample weighs the same, and what is left at the end of an epoch is applied too. (Burn
        sums the batches' means, and drops what is left.)
        """
        if batches < 1:
            raise BuilderError(f"grads_accumulation({batches}): at least one batch a step")
        self._accumulation = batches
        return self

    def with_file_checkpointer(self, recorder: Recorder) -> Self:
        """Write a checkpoint of every epoch to ``<directory>/checkpoint``. Default: none."""
        if recorder.precision is not FullPrecision:
            log.warning("checkpoints in half precision: a resumed run will not equal an unbroken one")
        self._checkpointer = FileCheckpointer(self._directory / "checkpoint", recorder)
        return self

    def with_checkpointing_strategy(self, retention: Retention) -> Self:
        """Which checkpoints stay. Default: the last two and the best by validation loss."""
        self._retention = retention
        return self

    def checkpoint(self, epoch: int) -> Self:
        """Go on after *epoch*, from its checkpoint in ``<directory>/checkpoint``."""
        self._checkpoint = epoch
        return self

    def seed(self, seed: int) -> Self:
        """What the random state of each epoch is derived from. Default: ``torch.initial_seed()``."""
        self._seed = seed
        return self

    def summary(self) -> Self:
        """Print the table of lowest and highest values at the end."""
        self._summary = True
        return self

    def build(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Adam | AdamW | Sgd,
        lr: float | LrScheduler | None = None,
    ) -> Learner:
        """The learner, its model on the device and, where a checkpoint was named, restored from it.

        *optimizer* is torch's own over the model's parameters, or a config; *lr* a rate, a scheduler, or
        nothing for the optimizer's own rate. Raises `BuilderError` or `CheckpointError` where it could
        not work.
        """
        self._check_model(model)
        device = find_device(self._device)
        model = model.to(device)
        if not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = build_optimizer(optimizer, model.parameters())
        state = State(model, optimizer, _scheduler(optimizer, lr))
        parts = Parts(
            state=state,
            num_epochs=self._num_epochs,
            seed=torch.initial_seed() if self._seed is None else self._seed,
            device=device,
            window=Window(self._accumulation),
            metrics=self._metrics,
            loggers=self._loggers or self._file_loggers(),
            renderer=self._renderer or plugins.find("renderer", DEFAULT_RENDERER, {})(),
            checkpointer=self._checkpointer,
            retention=self._retention,
        )
        if self._checkpoint is not None:
            if self._checkpointer is None:
                raise BuilderError(
                    f"checkpoint({self._checkpoint}) needs a checkpointer to read with: "
                    "call with_file_checkpointer first"
                )
            parts.history = state.restore(self._checkpointer.restore(self._checkpoint))
        return Learner(parts, summary=self._summary)

    def _register(self, split: Split, registered: Registered) -> Self:
        names = [each.metric.name for each in self._metrics[split]]
        if registered.metric.name in names:
            raise BuilderError(f"two metrics of the {split} split are called {registered.metric.name!r}")
        self._metrics[split].append(registered)
        return self

    def _file_loggers(self) -> dict[Split, list[MetricLogger]]:
        file_logger = plugins.find("logger", DEFAULT_LOGGER, {})
        return {split: [file_logger(self._directory / split)] for split in Split}

    def _check_model(self, model: Any) -> None:
        missing = [name for name in ("train_step", "valid_step") if not hasattr(model, name)]
        if missing:
            raise BuilderError(
                f"{type(model).__name__} has no {' and no '.join(missing)}: put a mixin before it, as in "
                "class Net(ClassificationStep, YourModule)"
            )


def _scheduler(optimizer: torch.optim.Optimizer, lr: float | LrScheduler | None) -> LrScheduler:
    if lr is None:
        return Scheduler(float(optimizer.param_groups[0]["lr"]))
    return Scheduler(float(lr)) if isinstance(lr, int | float) else lr
