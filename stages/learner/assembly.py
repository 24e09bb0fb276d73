"""The assembly of a run from the options, the model, the optimizer and the schedule."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from stages.checkpoints import FileCheckpointer, default_retention
from stages.checkpoints.file_names import CHECKPOINT_FOLDER, STEP_FOLDER
from stages.contracts.errors import BuilderError
from stages.contracts.fields import describe_portable_conflict
from stages.contracts.interrupter import Interrupter
from stages.contracts.renderers import Renderers
from stages.devices.compilation import (
    Compiler,
    apply_gradient_checkpointing,
    check_gradient_checkpointing,
    compile_in_place,
    unwrap_compiled,
    warn_of_ineffective_compile,
)
from stages.devices.compute_settings import prepare_process
from stages.devices.selection import find_device
from stages.learner.checkpointing import CheckpointManager, find_newest_checkpoint
from stages.learner.checks import (
    check_metric_inputs,
    check_model,
    check_monitored_metrics,
    check_optimizer,
    check_recordable_state,
    check_trainable,
)
from stages.learner.metering import Observers
from stages.learner.model_state import ModelState
from stages.learner.options import LearnerOptions, default_metric_loggers, default_renderer
from stages.learner.run_state import RunState
from stages.learner.step_strategies import Replicas
from stages.learner.training_state import check_training_state
from stages.optim import (
    GroupedOptimizer,
    LrScheduler,
    OptimizerConfig,
    ScheduleUse,
    WeightAverage,
    as_scheduler,
    build_model_optimizer,
    freeze_parameters,
)
from stages.records import NamedMpkGzFileRecorder, fields_unlike_burn

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Components:
    """The components of a run, which the loop drives."""

    options: LearnerOptions
    state: RunState
    replicas: Replicas
    observers: Observers
    checkpoints: CheckpointManager | None
    interrupter: Interrupter


def assemble(
    options: LearnerOptions,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | OptimizerConfig | GroupedOptimizer,
    lr: float | LrScheduler | torch.optim.lr_scheduler.LRScheduler | ScheduleUse | None,
) -> Components:
    """Return the components of the run, restored from the checkpoint that *options* name, if any.

    Raises `BuilderError` for options that cannot work, and `CheckpointError`.
    """
    model, compilers = unwrap_compiled(model)
    if options.compile is not None:
        compilers.setdefault("", options.compile.compiler())
    _check(options, model)
    if isinstance(optimizer, GroupedOptimizer):
        freeze_parameters(model, optimizer.freeze)  # before the copies for further devices
    model, replicas = _build_replicas(options, model, compilers)
    clipping = options.clipping or getattr(optimizer, "clipping", None)
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = build_model_optimizer(optimizer, model)
    check_optimizer(optimizer, model, batches_per_step=options.accumulation.batches * len(replicas))
    check_training_state(model, optimizer)
    scheduler = as_scheduler(optimizer, lr)
    if any(options.metrics.values()) or not isinstance(lr, ScheduleUse):  # build-learner has no metrics
        check_monitored_metrics(scheduler, options.metrics)
    model_state = ModelState(model, optimizer, scheduler, clipping, fast_path=options.fast_path)
    if options.averaging is not None:
        model_state.average = WeightAverage(options.averaging, model)
    components = Components(
        options=options,
        state=RunState(model_state, options, replicas.devices),
        replicas=replicas,
        observers=_build_observers(options),
        checkpoints=_build_checkpoints(options),
        interrupter=options.interrupter or Interrupter(),
    )
    _restore(components)
    return components


def _build_replicas(
    options: LearnerOptions, model: Any, compilers: Mapping[str, Compiler]
) -> tuple[Any, Replicas]:
    """Return *model* on the first device, and together with its copies on the others."""
    devices = [find_device(device) for device in options.devices]
    prepare_process(options.compute, devices[0])
    warn_of_ineffective_compile(model, len(devices))
    model = model.to(devices[0])
    replicas = Replicas(model, devices)
    if options.gradient_checkpointing:
        check_gradient_checkpointing(model, compilers)
        replicas.apply(apply_gradient_checkpointing)
    replicas.apply(partial(compile_in_place, compilers=compilers))
    return model, replicas


def _check(options: LearnerOptions, model: Any) -> None:
    compute = options.compute
    conflict = describe_portable_conflict(
        num_threads=compute.num_threads, precision=compute.precision, compiles=options.compile is not None
    )
    if compute.portable and conflict:
        raise BuilderError(conflict)
    check_model(model)
    check_trainable(model)
    check_metric_inputs(model, options.metrics)
    check_monitored_metrics(options.early_stopping, options.metrics)
    check_monitored_metrics(options.retention, options.metrics)
    if options.recorder is not None:
        check_recordable_state(model)
        for field in fields_unlike_burn(model):
            log.warning("Burn cannot load %s from the checkpoints of this model", field)
    if options.checkpoint is not None and options.recorder is None:
        raise BuilderError(
            f"checkpoint({options.checkpoint}) needs a checkpointer that reads it: "
            "call with_file_checkpointer first"
        )


def _build_observers(options: LearnerOptions) -> Observers:
    renderer = options.renderer or default_renderer()
    return Observers(
        metrics=options.metrics,
        loggers=options.loggers or default_metric_loggers(options.directory),
        telemetry=options.loggers or default_metric_loggers(options.directory / "telemetry"),
        additional=options.additional_loggers,
        renderer=Renderers([renderer, *options.progress_loggers]) if options.progress_loggers else renderer,
    )


def _build_checkpoints(options: LearnerOptions) -> CheckpointManager | None:
    if options.recorder is None:
        return None
    return CheckpointManager(
        FileCheckpointer(options.directory / CHECKPOINT_FOLDER, options.recorder),
        FileCheckpointer(options.directory / STEP_FOLDER, NamedMpkGzFileRecorder(compression=0)),
        options.retention or default_retention(),
        options.interval,
    )


def _restore(components: Components) -> None:
    """Restore the state from the checkpoint that the options name, if any.

    Raises `CheckpointError` if that of an epoch is missing or corrupt, or if all of several are corrupt.
    """
    options, checkpoints = components.options, components.checkpoints
    if checkpoints is None or options.checkpoint is None:
        return
    if options.checkpoint == "auto":
        checkpoint = find_newest_checkpoint(
            checkpoints.epochs,
            checkpoints.steps,
            last_epoch=options.num_epochs,
            identity=options.identity,
            verify_logs=components.observers.verify_logs,
        )
        if checkpoint is None:
            return
    else:
        log.info("Restoring checkpoint %d from %s", options.checkpoint, checkpoints.epochs.directory)
        checkpoint = checkpoints.epochs.restore(options.checkpoint)
    components.state.restore(checkpoint)
    components.replicas.synchronize()
