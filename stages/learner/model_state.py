"""The model with its optimizer and learning rate schedule: the update, and their part of a checkpoint."""

import copy
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from stages import distributed
from stages.contracts.errors import BuilderError, CheckpointError, RecordError
from stages.contracts.fields import FastPath
from stages.contracts.history import History, Split
from stages.contracts.outputs import TrainOutput
from stages.contracts.text import join_names
from stages.learner.checks import RuleOptions, find_valid_metrics, updates_itself
from stages.learner.hooks import Hooks
from stages.learner.resume.training_state import load_training_state, training_state
from stages.optim import Clipping, LrScheduler, Stepper, WeightAverage, clip, without_dynamo
from stages.optim.scheduler import OptimizerRate
from stages.records import (
    decode_state,
    encode_state,
    from_plain,
    load_into,
    module_supplement,
    optimizer_record,
    optimizer_supplement,
    record_of,
    record_of_state,
    restore_optimizer,
    skeleton_of,
    state_of,
    to_plain,
)
from stages.runs import Checkpoint

log = logging.getLogger(__name__)

CHECK_INTERVAL = 64
"""The updates between two searches for options and state of the optimizer that a model has changed."""
MAX_LISTED_PARAMETERS = 4
"""Limit of the names in a message."""
_PROGRESS = {"optimizer", "last_epoch"}
"""Parameters of a scheduler that are not its options."""


class ModelState:
    """A model with its optimizer, its learning rate schedule and its number of finished epochs."""

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        scheduler: LrScheduler,
        clipping: Clipping | None = None,
        *,
        fast_path: FastPath = "auto",
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.epoch = 0
        """The last finished epoch; 0 before the first."""
        self.average: WeightAverage | None = None
        """The average of the weights; None if they are not averaged."""
        self.hooks = Hooks((), model, optimizer)
        """The hooks of the run."""
        self.is_sharded = False
        """True if each rank has a part of every parameter."""
        self._parameters: dict[str, Tensor] = dict(model.named_parameters())
        self._buffer_shapes = _find_buffer_shapes(model)
        self._group_sizes = _count_parameters(optimizer)
        self._stepper = Stepper(
            list(self._parameters.values()),
            optimizer,
            clipping,
            fast_path=fast_path,
            check_interval=CHECK_INTERVAL,
        )
        self._drives_groups = RuleOptions.of(scheduler).drives_groups
        self.updates_itself = updates_itself(model)
        self.needs_closure = self._stepper.needs_closure
        """True if the optimizer evaluates a batch several times per step: use `update_with_closure` then."""

    @property
    def reads_flag(self) -> bool:
        """True if the update can be skipped by a flag on the device."""
        return self._stepper.reads_flag and not self.updates_itself

    def update(self, gradients: Sequence[Tensor | None], rate: float, skip: Tensor | None = None) -> None:
        """Update the model with *gradients*, one per parameter, at the learning rate *rate*.

        If *skip*, a scalar tensor, is 1, nothing is updated.
        A model with a method ``optimize(optimizer, gradients, learning_rate)`` updates itself, as in Burn.
        """
        if self.updates_itself:
            clipping = self._stepper.clipping
            clipped = clip(gradients, clipping) if clipping else gradients
            self.model.optimize(self.optimizer, clipped, rate)
        else:
            self._stepper.step(gradients, None if self._drives_groups else rate, skip)
        if self.average is not None:
            self.end_step()

    def update_on_device(
        self, gradients: Sequence[Tensor | None], rates: Sequence[Tensor], skip: Tensor | None
    ) -> None:
        """Update at *rates*, a scalar on the device for each group; a CUDA graph may record it.

        Call `prepare_update` before each launch of the graph.
        """
        with self._stepper.rates_from(rates):
            self._stepper.step(gradients, None, skip)

    def prepare_update(self, rate: float) -> list[float]:
        """Set the rate of each group, as `update` does at the learning rate *rate*, and return the rates."""
        self._stepper.set_rates(None if self._drives_groups else rate)
        return self._stepper.rates

    def begin_training(self) -> None:
        """Call the hooks, and adapt to what was changed in the optimizer since the last epoch."""
        self.hooks.call("before_epoch", self.hooks.context.step)
        self.check_parameters()
        self._stepper.check_next()

    def check_parameters(self) -> None:
        """Raise `BuilderError` if the parameters of the model are not those that `update` changes."""
        if self.is_sharded or self.updates_itself:  # gathered parameters are other objects
            return
        before, current = self._parameters, dict(self.model.named_parameters())
        if [*map(id, before.values())] == [*map(id, current.values())]:
            return
        changed = [name for name in {**before, **current} if before.get(name) is not current.get(name)]
        raise BuilderError(
            f"the parameters of {type(self.model).__name__} changed in the run, in a hook or a step: "
            f"{join_names(changed or list(current), MAX_LISTED_PARAMETERS)} were replaced, added, removed or "
            "reordered, so the gradients would not fit. Change the modules before the learner is built, also "
            "to prune them; in the run, change values in place, or requires_grad"
        )

    @property
    def is_changed(self) -> bool:
        """True if the optimizer or an entry of its state was replaced since the last update."""
        return not self._stepper.reads_flag or self._stepper.is_changed()

    @property
    def constant_options(self) -> list[list[Any]]:
        """The options of each group of the optimizer, except for its rate."""
        return self._stepper.constant_options

    def update_with_closure(self, evaluate: Callable[[], TrainOutput[Any]], rate: float) -> None:
        """Update with an optimizer that calls *evaluate* several times per step, as L-BFGS does.

        If a call raises, the weights and the state of the optimizer are restored.
        """
        weights = [parameter.detach().clone() for parameter in self.model.parameters()]
        with without_dynamo():
            optimizer = copy.deepcopy(self.optimizer.state_dict())

        def closure() -> tuple[Tensor, Sequence[Tensor | None]]:
            step = evaluate()
            return step.item.loss, step.gradients

        try:
            self._stepper.step_with_closure(closure, None if self._drives_groups else rate)
        except BaseException:
            with torch.no_grad(), without_dynamo():
                for parameter, weight in zip(self.model.parameters(), weights, strict=True):
                    parameter.copy_(weight)
                self.optimizer.load_state_dict(optimizer)
            raise
        self.end_step()

    def end_step(self) -> None:
        """Update the average of the weights, if it is one over steps."""
        if self.average is not None:
            self.average.end_step(self.epoch + 1)

    def end_training(self, epoch: int) -> None:
        """End the training of *epoch*, before its validation."""
        if self.average is not None:
            self.average.end_epoch(epoch)

    def apply_average(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the average of its weights, if there is one yet.

        A checkpoint that is saved in it has the weights of the training.
        """
        return nullcontext() if self.average is None else self.average.apply()

    def end_schedule_epoch(self, history: History, *, is_validated: bool) -> None:
        """End an epoch of the scheduler with the value in *history* of the metric that it monitors.

        A plateau of the valid split counts the epochs with a validation only.
        """
        if find_valid_metrics(self.scheduler) and not is_validated:
            return
        split, metric = RuleOptions.of(self.scheduler).monitored or (Split.VALID, "Loss")
        self.scheduler.end_epoch(history.value(self.epoch, split, metric))

    def checkpoint(self, trainer: Mapping[str, Any]) -> Checkpoint:
        """Return a checkpoint: Burn's records, and the rest of the state with *trainer*, that of the loop.

        Raises `RecordError` for a value in the state that no record can hold, and for a state that a new
        model and optimizer could not load.
        """
        self._check_loadable()
        layout, extra = skeleton_of(self.model), training_state(self.model)
        supplement = encode_state(module_supplement(self.model), f"{type(self.model).__name__}.state_dict()")
        optional = {"training_state": extra, "hooks": self.hooks.state_dict()}
        if self.average is not None:
            optional["average"] = self.average.state_dict()
        raw = {} if self.average is None else self.average.raw
        with without_dynamo():
            return Checkpoint(
                model=record_of(self.model, {**self.model.state_dict(), **raw}, layout),
                optim=optimizer_record(self.optimizer, self.model, layout) or {},
                scheduler=RuleOptions.of(self.scheduler).burn_state(),
                trainer={
                    "epoch": self.epoch,
                    "layout": to_plain(layout),
                    "model": _replace_entries(supplement, raw),
                    "optim": optimizer_supplement(self.optimizer, self.model),
                    "scheduler": encode_state(
                        self.scheduler.state_dict(), f"{type(self.scheduler).__name__}.state_dict()"
                    ),
                    **{name: entry for name, entry in optional.items() if entry},
                    **trainer,
                },
            )

    def _check_loadable(self) -> None:
        """Raise `RecordError` if a buffer or a group of the optimizer was added, or changed its size."""
        before, current = self._buffer_shapes, _find_buffer_shapes(self.model)
        for name in {**before, **current}:
            if before.get(name) != current.get(name):
                raise RecordError(
                    f"the buffer {name} of {type(self.model).__name__} had "
                    f"{_describe_shape(before.get(name))} when the learner was built, and now has "
                    f"{_describe_shape(current.get(name))}: a new model could not load the checkpoint. "
                    "Register it with its final shape, or call the model once before the learner is built. "
                    "Register what grows with persistent=False, and return it from training_state"
                )
        sizes = _count_parameters(self.optimizer)
        if sizes != self._group_sizes:
            raise RecordError(
                f"the {type(self.optimizer).__name__} had groups of {self._group_sizes} parameters when the "
                f"learner was built, and now has groups of {sizes}: a new optimizer could not load the "
                "checkpoint. Create it with all groups, and freeze parameters with requires_grad until an "
                "epoch, as the hook Unfreeze does"
            )

    def resume(self, checkpoint: Checkpoint) -> None:
        """Do what `restore` does, and log a warning with the arguments of the run that it replaces."""
        arguments = self._read_arguments()
        self.restore(checkpoint)
        if _is_of_run(checkpoint):
            _report_replaced(arguments, self._read_arguments())

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state in *checkpoint*. Raises `CheckpointError` if it does not fit."""
        trainer = checkpoint.trainer
        try:
            with distributed.accept_whole_tensors(self.optimizer) if self.is_sharded else nullcontext():
                self._restore_tensors(checkpoint)
            self._stepper.refresh()
            self.scheduler.load_state_dict(decode_state(trainer["scheduler"]))
            self.epoch = int(trainer["epoch"])
        except (RecordError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"the checkpoint does not fit this model and optimizer: {error}. Build the learner with the "
                "model and the optimizer that it was saved from"
            ) from error
        load_training_state(self.model, trainer.get("training_state", {}))
        self.hooks.load_state_dict(trainer.get("hooks", {}), warns=_is_of_run(checkpoint))

    def _read_arguments(self) -> dict[str, Any]:
        """Return the arguments of the optimizer and of a PyTorch scheduler that a checkpoint replaces."""
        arguments: dict[str, Any] = {}
        scheduler = RuleOptions.of(self.scheduler).scheduler
        changing = {"params", "initial_lr", *_find_progress(self.optimizer)}
        if scheduler is not None and vars(scheduler).get("cycle_momentum"):
            changing |= {"momentum", "betas"}
        for number, group in enumerate(self.optimizer.param_groups):
            place = f" of group {number}" if number else ""
            options = {name: value for name, value in group.items() if name not in changing}
            options["lr"] = self._read_initial_rate(group)
            arguments |= {f"{name}{place}": value for name, value in options.items()}
        kind = type(scheduler)
        accepted = inspect.signature(kind).parameters.keys() - _PROGRESS if scheduler is not None else ()
        state = vars(scheduler) if accepted else {}
        return arguments | {f"{name} of {kind.__name__}": state[name] for name in accepted if name in state}

    def _read_initial_rate(self, group: Mapping[str, Any]) -> Any:
        """Return the rate of *group* that a checkpoint replaces; None if the schedule sets it."""
        if isinstance(self.scheduler, OptimizerRate):
            return group["lr"]
        return group.get("initial_lr") if self._drives_groups else None

    def _restore_tensors(self, checkpoint: Checkpoint) -> None:
        """Restore the weights, the state of the optimizer, and the average."""
        trainer = checkpoint.trainer
        load_weights(self.model, checkpoint)
        with without_dynamo():
            restore_optimizer(self.optimizer, self.model, checkpoint.optim, trainer["optim"])
        if self.average is not None:
            self.average.load_state_dict(trainer.get("average"))


def _find_buffer_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape of each buffer of *model* that its state dict has."""
    state, buffers = model.state_dict(), model.named_buffers(remove_duplicate=False)
    return {name: tuple(buffer.shape) for name, buffer in buffers if name in state and not is_lazy(buffer)}


def _describe_shape(shape: tuple[int, ...] | None) -> str:
    return "no value" if shape is None else f"the shape {shape}"


def _count_parameters(optimizer: torch.optim.Optimizer) -> list[int]:
    """Return the number of parameters in each group of *optimizer*."""
    return [len(group["params"]) for group in optimizer.param_groups]


def _find_progress(optimizer: torch.optim.Optimizer) -> set[str]:
    """Return the entries of the groups of *optimizer* that are not arguments, if it is from outside of torch.

    Such an optimizer may count its steps in them, as those of schedulefree do.
    """
    kind = type(optimizer)
    parameters = inspect.signature(kind).parameters
    accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if accepts_any or kind.__module__.startswith(("torch.optim", "stages.")):
        return set()
    return {name for group in optimizer.param_groups for name in group if name not in parameters}


def _is_of_run(checkpoint: Checkpoint) -> bool:
    """Return whether *checkpoint* has trained weights, unlike the records that build-learner writes."""
    trainer = checkpoint.trainer
    return int(trainer["epoch"]) > 0 or trainer.get("place") is not None


def _report_replaced(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Log a warning with the arguments *before* a checkpoint was loaded that differ *after* it was."""
    texts = {name: (repr(after.get(name)), repr(value)) for name, value in before.items()}
    replaced = [f"{name} is {now}, not {then}" for name, (now, then) in texts.items() if now != then]
    if replaced:
        log.warning(
            "the checkpoint replaces arguments of this run: %s. Start a new run to change them",
            "; ".join(replaced),
        )


def load_weights(model: Any, checkpoint: Checkpoint) -> None:
    """Load the weights in *checkpoint* into *model*, and what the record of a model lacks.

    Raises `RecordError` or `RuntimeError` if they do not fit.
    """
    load_into(model, checkpoint.model, layout="burn", source="its model")
    model.load_state_dict({**model.state_dict(), **decode_state(checkpoint.trainer["model"])})


def use_exact_weights(checkpoint: Checkpoint) -> Checkpoint:
    """Return *checkpoint* with all bits of its weights in the record of the model.

    The record on disk has the precision of its recorder: float32 of a model in float64.
    """
    layout = from_plain(checkpoint.trainer["layout"], "the checkpoint")
    return replace(checkpoint, model=record_of_state(state_dict_of(checkpoint), layout))


def use_average(checkpoint: Checkpoint) -> Checkpoint:
    """Return *checkpoint* with the average of the weights as its model, if it has one."""
    trainer = checkpoint.trainer
    average = trainer.get("average", {}).get("state")
    if not average:
        return checkpoint
    layout = from_plain(trainer["layout"], "the checkpoint")
    state = state_dict_of(checkpoint)
    average = {name: value.to(state[name].dtype) for name, value in average.items()}
    model = record_of_state({**state, **average}, layout)
    return replace(
        checkpoint, model=model, trainer={**trainer, "model": _replace_entries(trainer["model"], average)}
    )


def _replace_entries(entries: Mapping[str, Any], others: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return *entries*, with those of *others* in place of their own."""
    return {name: others.get(name, entry) for name, entry in entries.items()}


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the model's weights in *checkpoint*, with PyTorch's names, axes and dtypes."""
    read = state_of(checkpoint.model, from_plain(checkpoint.trainer["layout"], "the checkpoint"), "its model")
    return {**read.state, **decode_state(checkpoint.trainer["model"])}
