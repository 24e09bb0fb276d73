"""The assembly of a run from the options, the model, the optimizer and the schedule."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from stages import distributed
from stages.contracts.errors import BuilderError, RecordError
from stages.contracts.events import Interrupter, MetricLogger, Renderer, Renderers
from stages.contracts.fields import describe_portable_conflict
from stages.contracts.history import Split, check_file_names
from stages.contracts.plugins import check_object
from stages.contracts.printing import print_line
from stages.devices.compilation import (
    Compiler,
    apply_gradient_checkpointing,
    check_gradient_checkpointing,
    compile_in_place,
    unwrap_compiled,
    warn_of_ineffective_compile,
)
from stages.devices.compute_settings import prepare_process
from stages.devices.rng import warn_of_cudnn_dropout
from stages.distributed import (
    RankGroup,
    check_synchronization,
    find_batch_norms,
    find_rank_device,
    join_group,
    synchronize_batch_norms,
)
from stages.learner.checks import (
    check_metric_inputs,
    check_model,
    check_monitored_metrics,
    check_optimizer,
    check_recordable_state,
    check_trainable,
)
from stages.learner.hooks import Hooks
from stages.learner.model_state import ModelState
from stages.learner.observers import Observers
from stages.learner.options import LearnerOptions, default_metric_loggers, find_default
from stages.learner.resume.burn_checkpoints import read_burn_checkpoint
from stages.learner.resume.checkpointing import (
    CheckpointManager,
    FollowingCheckpoints,
    GatheringWriter,
    find_newest_checkpoint,
    verify_epoch_logs,
)
from stages.learner.resume.training_state import check_training_state
from stages.learner.run_state import RunState
from stages.optim import (
    GroupedOptimizer,
    LrScheduler,
    OptimizerConfig,
    Scheduler,
    ScheduleUse,
    WeightAverage,
    as_scheduler,
    build_model_optimizer,
    freeze_parameters,
    schedule_groups,
)
from stages.optim.schedules import Rule
from stages.records import (
    BytesRecorder,
    FileRecorder,
    NamedMpkGzFileRecorder,
    Recorder,
    fields_unlike_burn,
    separate_elements,
)
from stages.runs import Checkpoint, FileCheckpointer, StoredCheckpointer, default_retention
from stages.runs.file_names import CHECKPOINT_FOLDER, STEP_FOLDER

log = logging.getLogger(__name__)


AnyOptimizer = torch.optim.Optimizer | OptimizerConfig | GroupedOptimizer
LearningRate = float | LrScheduler | torch.optim.lr_scheduler.LRScheduler | ScheduleUse | Rule | None
"""A rate, a scheduler (of `stages.optim` or of torch), a schedule, or None for the optimizer's own rates."""


@dataclass(frozen=True)
class Components:
    """The components of a run, which the loop drives."""

    options: LearnerOptions
    state: RunState
    group: RankGroup
    """The ranks of the run, of which this process is one."""
    device: torch.device
    """The device of this rank."""
    observers: Observers
    checkpoints: CheckpointManager | FollowingCheckpoints | None
    """None without a recorder, and on the other ranks unless the parameters are sharded."""
    interrupter: Interrupter


def assemble(
    options: LearnerOptions,
    model: nn.Module,
    optimizer: AnyOptimizer,
    lr: LearningRate,
) -> Components:
    """Return the components of the run, restored from the checkpoint that *options* name, if any.

    Raises `BuilderError` for options that cannot work, and `CheckpointError`.
    """
    model, compilers = unwrap_compiled(model)
    if options.compile is not None:
        compilers.setdefault("", options.compile.compiler())
    _check(options, model, optimizer)
    groups = optimizer if isinstance(optimizer, GroupedOptimizer) else None
    if groups is not None:
        freeze_parameters(model, groups.freeze)
    device = find_rank_device(options.devices)
    group = join_group(options.devices)
    is_sharded = options.strategy == "fsdp" and group.size > 1
    if group.size > 1:
        _check_sharding(options)
        _prepare_batch_norms(options, model, group, device)
    whole = list(model.parameters())
    model = _place_model(options, model, compilers, device, group if is_sharded else None)
    clipping = options.clipping
    if not isinstance(optimizer, torch.optim.Optimizer):
        clipping = clipping or optimizer.clipping
        optimizer = build_model_optimizer(optimizer, model)
    elif is_sharded:
        distributed.replace_parameters(optimizer, whole, model)
    check_optimizer(options, optimizer, model, group.size)
    if is_sharded:
        distributed.check_sharded_optimizer(optimizer)
    check_training_state(model, optimizer)
    scheduler = _build_scheduler(options, model, optimizer, groups, lr)
    model_state = ModelState(model, optimizer, scheduler, clipping, fast_path=options.fast_path)
    model_state.is_sharded = is_sharded
    model_state.hooks = Hooks(options.hooks, model, optimizer)
    if options.averaging is not None:
        model_state.average = WeightAverage(options.averaging, model)
    _check_recordable(model_state, options.recorder)
    observers = _build_observers(options if group.is_main else _silence(options), group)
    components = Components(
        options=options,
        state=RunState(model_state, options, device, group),
        group=group,
        device=device,
        observers=observers,
        checkpoints=_build_checkpoints(options, group, observers.renderer, is_sharded=is_sharded),
        interrupter=options.interrupter or Interrupter(),
    )
    _restore(components)
    return components


def _place_model(
    options: LearnerOptions,
    model: Any,
    compilers: Mapping[str, Compiler],
    device: torch.device,
    shards: RankGroup | None,
) -> Any:
    """Return *model* on *device*, with the compilation and the gradient checkpointing of the options.

    If there is a group of ranks in *shards*, they shard the parameters, which are not on a device before.
    """
    prepare_process(options.compute, device)
    separate_elements(model)
    warn_of_ineffective_compile(model)
    warn_of_cudnn_dropout(model, device)
    if options.gradient_checkpointing:
        check_gradient_checkpointing(model, compilers)
        apply_gradient_checkpointing(model)
    if shards is None:
        model = model.to(device)
    else:
        shards.broadcast_tensors([*model.parameters(), *model.buffers()])
        distributed.shard_model(model, device, shards.size)
    compile_in_place(model, compilers=compilers)
    return model


def _build_scheduler(
    options: LearnerOptions,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    groups: GroupedOptimizer | None,
    lr: LearningRate,
) -> LrScheduler:
    """Return the schedule of *lr*, with those of *groups* that have one of their own.

    Raises `BuilderError` if it follows a metric that is not registered.
    """
    scheduler = as_scheduler(optimizer, lr)
    if groups is not None:
        scheduler = schedule_groups(groups, model, optimizer, scheduler)
    if isinstance(scheduler, Scheduler):
        scheduler.follow(options.burn_version or "0.21", accumulates=options.accumulation.batches > 1)
    if any(options.metrics.values()) or not isinstance(lr, ScheduleUse):  # build-learner has no metrics
        check_monitored_metrics(scheduler, options.metrics)
    return scheduler


def _check_recordable(state: ModelState, recorder: Recorder | None) -> None:
    """Raise `BuilderError` if a checkpoint of *recorder*, if there is one, cannot hold a value in *state*.

    A model whose state is created by the first step is checked after it.
    """
    if recorder is None:
        return
    with suppress(AttributeError, KeyError, TypeError):
        try:
            schedule = state.checkpoint({}).scheduler
            if isinstance(recorder, FileRecorder) and recorder.has_names:  # bincode has no -1 of a new Step
                BytesRecorder(recorder.form).record(schedule)
        except RecordError as error:
            raise BuilderError(str(error)) from error


def _check(options: LearnerOptions, model: Any, optimizer: Any) -> None:
    compute = options.compute
    conflict = describe_portable_conflict(
        num_threads=compute.num_threads, precision=compute.precision, compiles=options.compile is not None
    )
    if compute.portable and conflict:
        raise BuilderError(conflict)
    check_model(model)
    check_trainable(model)
    check_metric_inputs(model, options.metrics)
    if options.loggers is None:
        for registered in options.metrics.values():
            check_file_names(metric.name for metric in registered)
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
    check_object(optimizer, "optimizer", "Adam()", "param_groups", "kind", "groups")


def _check_sharding(options: LearnerOptions) -> None:
    """Raise `BuilderError` if several ranks shard the parameters and an option needs all of them on each."""
    conflicts = {
        "precision fp16": options.compute.precision == "fp16",
        "sync_batch_norm": options.sync_batch_norm,
    }
    for name, is_set in conflicts.items():
        if options.strategy == "fsdp" and is_set:
            raise BuilderError(f"{name} cannot be used with the strategy fsdp. Use the strategy ddp")


def _prepare_batch_norms(
    options: LearnerOptions, model: nn.Module, group: RankGroup, device: torch.device
) -> None:
    """Have the batch norms of *model* use the statistics of all ranks, or warn that they do not."""
    if options.sync_batch_norm:
        check_synchronization(model, device)
        synchronize_batch_norms(model)
    elif group.is_main and (kinds := find_batch_norms(model)):
        log.warning(
            "%s normalizes by the statistics of each rank's share of a batch; the running statistics are "
            "those of rank 0. On accelerators, set sync_batch_norm to use those of all ranks",
            ", ".join(kinds),
        )


def _build_observers(options: LearnerOptions, group: RankGroup) -> Observers:
    renderer: Renderer = options.renderer or find_default("renderers:default_renderer")()
    return Observers(
        metrics=options.metrics,
        loggers=options.loggers or default_metric_loggers(options.directory),
        telemetry=options.loggers or default_metric_loggers(options.directory / "telemetry"),
        additional=options.additional_loggers,
        renderer=Renderers([renderer, *options.progress_loggers]) if options.progress_loggers else renderer,
        group=group,
        burn=options.burn_version,
    )


def _silence(options: LearnerOptions) -> LearnerOptions:
    """Return the options of a rank that only measures: rank 0 adds, logs and shows its values."""
    metrics = {
        split: tuple(metric for metric in registered if not (metric.telemetry or metric.covers_pass))
        for split, registered in options.metrics.items()
    }
    none: dict[Split, tuple[MetricLogger, ...]] = dict.fromkeys(Split, ())
    return replace(
        options,
        metrics=metrics,
        loggers=none,
        additional_loggers=none,
        renderer=Renderers([]),
        progress_loggers=(),
    )


def _build_checkpoints(
    options: LearnerOptions, group: RankGroup, renderer: Renderer, *, is_sharded: bool
) -> CheckpointManager | FollowingCheckpoints | None:
    if options.recorder is None or not (group.is_main or is_sharded):
        return None
    if not group.is_main:
        return FollowingCheckpoints(group)
    return CheckpointManager(
        StoredCheckpointer(options.directory / CHECKPOINT_FOLDER, options.recorder, options.storage)
        if options.storage
        else FileCheckpointer(options.directory / CHECKPOINT_FOLDER, options.recorder),
        FileCheckpointer(options.directory / STEP_FOLDER, NamedMpkGzFileRecorder(compression=0)),
        options.retention or default_retention(),
        options.interval,
        writer=GatheringWriter(group) if is_sharded else None,
        on_epoch_saved=Renderers([renderer]).checkpoint,
    )


def _restore(components: Components) -> None:
    """Restore the state from the checkpoint that the options name, if any, which rank 0 reads.

    Raises `CheckpointError` if that of an epoch is missing or corrupt, or if all of several are corrupt.
    """
    checkpoint = _read_checkpoint(components)
    if components.group.size > 1:
        checkpoint = _share_start(components, checkpoint)
    if checkpoint is not None:
        components.state.restore(checkpoint)
        options, resumed = components.options, components.state.resumed
        if resumed and options.checkpoint == "auto" and not options.identity and components.group.is_main:
            print_line(f"resuming the run in {options.directory} {resumed}")


def _read_checkpoint(components: Components) -> Checkpoint | None:
    """Return the checkpoint that the options name, which only rank 0 reads."""
    options, checkpoints = components.options, components.checkpoints
    if not isinstance(checkpoints, CheckpointManager) or options.checkpoint is None:
        return None
    of_burn = checkpoints.epochs.list_burn_epochs()
    if options.checkpoint == "auto":
        newest = find_newest_checkpoint(
            checkpoints.epochs,
            checkpoints.steps,
            last_epoch=options.num_epochs,
            identity=options.identity,
            verify_logs=components.observers.verify_logs,
        )
        epoch = max((number for number in of_burn if number <= options.num_epochs), default=0)
        if not epoch or (newest is not None and int(newest.trainer["epoch"]) >= epoch):
            return newest
    else:
        epoch = options.checkpoint
    if epoch in of_burn:
        return read_burn_checkpoint(components.state.model, checkpoints.epochs, epoch, options)
    log.info("Restoring checkpoint %d from %s", epoch, checkpoints.epochs.directory)
    checkpoint = checkpoints.epochs.restore(epoch)
    verify_epoch_logs(options.directory, checkpoint)
    return checkpoint


def _share_start(components: Components, checkpoint: Checkpoint | None) -> Checkpoint | None:
    """Return rank 0's *checkpoint*, and give every rank the weights, the buffers and the seed of rank 0."""
    group, state = components.group, components.state
    model = state.model.model
    if not state.is_sharded:  # otherwise they are equal since the parameters were sharded
        group.broadcast_tensors([*model.parameters(), *model.buffers()])
    received: Any = group.broadcast(None if checkpoint is None else vars(checkpoint))
    state.share_seed(is_resumed=received is not None)
    return None if received is None else Checkpoint(**received)
