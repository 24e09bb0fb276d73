"""From what a builder was told to the parts of a run."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from stages.checkpoints import FileCheckpointer, Retention, default_retention
from stages.checkpoints.file_names import CHECKPOINT_FOLDER, STEP_FOLDER
from stages.contracts.errors import BuilderError
from stages.contracts.events import MetricLogger, Renderer
from stages.contracts.history import Split
from stages.contracts.interrupter import Interrupter
from stages.contracts.renderers import Renderers
from stages.learner import defaults
from stages.learner.checks import (
    check_fed,
    check_model,
    check_needs,
    check_optimizer,
    check_recordable_state,
    check_trainable,
)
from stages.learner.compilation import Compiler, check_compiled, check_recompute, compile_in_place, unwrap
from stages.learner.devices import find_device
from stages.learner.meter import Registered
from stages.learner.parts import Parts
from stages.learner.recompute import recompute_activations
from stages.learner.replicas import Replicas
from stages.learner.saver import Saver, SavingRule
from stages.learner.state import State
from stages.learner.stopping import EarlyStopping
from stages.learner.training_state import check_training_state
from stages.learner.watchers import Watchers
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
from stages.records import NamedMpkGzFileRecorder, Recorder, fields_unlike_burn

log = logging.getLogger(__name__)


@dataclass
class Chosen:
    """What a builder was told, with the default of what it was not."""

    directory: Path
    metrics: dict[Split, list[Registered]] = field(default_factory=lambda: {split: [] for split in Split})
    loggers: dict[Split, list[MetricLogger]] = field(default_factory=dict)
    renderer: Renderer | None = None
    progress_loggers: list[Renderer] = field(default_factory=list)
    num_epochs: int = 1
    devices: Sequence[str | torch.device] = ("auto",)
    accumulation: Accumulation = field(default_factory=Accumulation)
    non_finite: NonFinite = field(default_factory=NonFinite)
    clipping: Clipping | None = None
    recompute: bool = False
    checkpoint: int | Literal["auto"] | None = None
    recorder: Recorder | None = None
    saving: SavingRule = field(default_factory=SavingRule)
    identity: str | None = None
    retention: Retention | None = None
    stopping: EarlyStopping | None = None
    interrupter: Interrupter | None = None
    seed: int | None = None


def assembled(
    chosen: Chosen,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | OptimizerConfig,
    lr: float | LrScheduler | torch.optim.lr_scheduler.LRScheduler | None,
) -> Parts:
    """Return the parts of the run, restored from the checkpoint that *chosen* names, if any.

    Raises `BuilderError` or `CheckpointError` for what could not work.
    """
    model, compilers = unwrap(model)
    _check(chosen, model)
    model, replicas = _replicas(chosen, model, compilers)
    clipping = chosen.clipping or getattr(optimizer, "clipping", None)
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = build_optimizer(optimizer, model.parameters())
    check_optimizer(optimizer, model, batches_a_step=chosen.accumulation.batches * len(replicas))
    check_training_state(model, optimizer)
    scheduler = as_scheduler(optimizer, lr)
    check_needs(scheduler, chosen.metrics)
    parts = Parts(
        state=State(model, optimizer, scheduler, clipping),
        num_epochs=chosen.num_epochs,
        seed=chosen.seed,
        replicas=replicas,
        window=Window.of(chosen.accumulation, len(replicas)),
        guard=Guard(chosen.non_finite, [name for name, _ in model.named_parameters()]),
        watchers=_watchers(chosen),
        interrupter=chosen.interrupter or Interrupter(),
        saver=_saver(chosen),
        stopping=chosen.stopping,
        identity=chosen.identity,
    )
    if chosen.checkpoint == "auto":
        parts.restore_newest()
    elif chosen.checkpoint is not None:
        parts.restore(chosen.checkpoint)
    return parts


def _replicas(chosen: Chosen, model: Any, compilers: Mapping[str, Compiler]) -> tuple[Any, Replicas]:
    """Return *model* on the first device, and with its copies on the others."""
    devices = [find_device(device) for device in chosen.devices]
    check_compiled(model, len(devices))
    model = model.to(devices[0])
    replicas = Replicas(model, devices)
    if chosen.recompute:
        check_recompute(model, compilers)
        replicas.each(recompute_activations)
    replicas.each(partial(compile_in_place, compilers=compilers))
    return model, replicas


def _check(chosen: Chosen, model: Any) -> None:
    check_model(model)
    check_trainable(model)
    check_fed(model, chosen.metrics)
    check_needs(chosen.stopping, chosen.metrics)
    check_needs(chosen.retention, chosen.metrics)
    if chosen.recorder is not None:
        check_recordable_state(model)
        for field in fields_unlike_burn(model):
            log.warning("in a checkpoint's model, Burn cannot load %s", field)
    if chosen.checkpoint is not None and chosen.recorder is None:
        raise BuilderError(
            f"checkpoint({chosen.checkpoint}) needs a checkpointer to read with: "
            "call with_file_checkpointer first"
        )


def _watchers(chosen: Chosen) -> Watchers:
    renderer = chosen.renderer or defaults.renderer()
    return Watchers(
        metrics={split: list(metrics) for split, metrics in chosen.metrics.items()},
        loggers=chosen.loggers or defaults.file_loggers(chosen.directory),
        telemetry=chosen.loggers or defaults.file_loggers(chosen.directory / "telemetry"),
        renderer=Renderers([renderer, *chosen.progress_loggers]) if chosen.progress_loggers else renderer,
    )


def _saver(chosen: Chosen) -> Saver | None:
    if chosen.recorder is None:
        return None
    return Saver(
        FileCheckpointer(chosen.directory / CHECKPOINT_FOLDER, chosen.recorder),
        FileCheckpointer(chosen.directory / STEP_FOLDER, NamedMpkGzFileRecorder(compression=0)),
        chosen.retention or default_retention(),
        chosen.saving,
    )
