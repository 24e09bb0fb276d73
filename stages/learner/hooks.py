"""Hooks: objects that act on the model and the optimizer at fixed points of a run: see `hooks.md`."""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from stages.contracts.errors import BuilderError, closest
from stages.contracts.plugins import check_object
from stages.optim.parameter_groups import find_parameters, is_norm
from stages.records import decode_state, encode_state

EVENTS = (
    "before_fit",
    "before_epoch",
    "after_step",
    "before_validation",
    "after_validation",
    "after_epoch",
)
"""The methods of a hook that a run calls."""
PREFIXES = ("before_", "after_", "on_")
"""Beginnings of the names of events, here and in other libraries."""

log = logging.getLogger(__name__)


@dataclass
class HookContext:
    """The argument of each method of a hook. One object is updated for the whole run."""

    model: nn.Module
    optimizer: Optimizer
    epoch: int = 0
    """The epoch in progress, counted from 1."""
    step: int = 0
    """In `Hook.after_step`, the number of batches that the epoch has trained on.

    In the other methods 0, or the number of batches before the position in the epoch, of training or of
    validation, that the run resumes at.
    """


class Hook:
    """A base of hooks, whose methods do nothing; a hook may also be any object with some of them.

    The methods run on each rank, in training on the state of the run itself, so a hook can change what a run
    computes. A resumed run calls `before_fit` again and, within an epoch, also `before_epoch` or
    `before_validation`, with ``context.step > 0``: set in them what no checkpoint has, such as modes and
    ``requires_grad``, and count or draw only if it is 0.
    """

    def before_fit(self, context: HookContext) -> None:
        """Prepare the training in this process; ``context.epoch`` is the first epoch that it trains."""

    def before_epoch(self, context: HookContext) -> None:
        """Act before the training of an epoch, with the model in training mode."""

    def after_step(self, context: HookContext) -> None:
        """Act after each batch of training, and after the update if the accumulation window is full.

        The update of a partial window at the end of an epoch comes after the last call.
        """

    def before_validation(self, context: HookContext) -> None:
        """Act before the validation of an epoch, with the model in evaluation mode."""

    def after_validation(self, context: HookContext) -> None:
        """Act after the validation, with the model in evaluation mode."""

    def after_epoch(self, context: HookContext) -> None:
        """Act at the end of an epoch, before its checkpoint is written."""

    def state_dict(self) -> Any:
        """Return the state for a checkpoint, of the types that `stages.records.encode_state` supports.

        Several ranks resume with that of rank 0.
        """

    def load_state_dict(self, state_dict: Any) -> None:
        """Load what `state_dict` returned, before `before_fit`."""


class Unfreeze(Hook):
    """A hook that freezes the parameters whose names match a pattern until an epoch.

    The optimizer has them from the start, so ``build_learner.freeze`` must not match them.

    Args:
        match: A regular expression, or a list of some, that is searched in the names of parameters.
        epoch: The first epoch that trains them, from 2.

    Raises:
        BuilderError: If *epoch* is below 2; at the start of the run for a pattern without a match, and for
            parameters that the optimizer lacks.
    """

    def __init__(self, match: str | Sequence[str], epoch: int) -> None:
        if not isinstance(epoch, int) or epoch < 2:
            raise BuilderError(f"Unfreeze: epoch must be an integer from 2; found {epoch!r}")
        self._match = [match] if isinstance(match, str) else list(match)
        self._epoch = epoch

    def before_fit(self, context: HookContext) -> None:
        """Raise `BuilderError` for parameters that cannot be trained later."""
        parameters = find_parameters(context.model, self._match, "fit.hooks: match")
        trained = {id(tensor) for group in context.optimizer.param_groups for tensor in group["params"]}
        if missing := sum(id(parameter) not in trained for parameter in parameters):
            raise BuilderError(
                f"fit.hooks: the optimizer lacks {missing} of the {len(parameters)} parameters that "
                f"{self._match} match, so epoch {self._epoch} could not train them. Remove them from "
                "build_learner.freeze: the hook freezes them until then"
            )

    def before_epoch(self, context: HookContext) -> None:
        """Freeze the parameters, or have them trained from the epoch on."""
        for parameter in find_parameters(context.model, self._match, "fit.hooks: match"):
            parameter.requires_grad_(context.epoch >= self._epoch)


class FrozenNorms(Hook):
    """A hook that keeps normalizations whose parameters are all frozen in evaluation mode.

    They normalize by their running statistics, which then do not change, in training too. List it after an
    `Unfreeze` of the same layers. A normalization without parameters is not changed.
    """

    def before_epoch(self, context: HookContext) -> None:
        """Set the modules to evaluation mode."""
        for module in filter(is_norm, context.model.modules()):
            parameters = list(module.parameters(recurse=False))
            if parameters and not any(parameter.requires_grad for parameter in parameters):
                module.eval()


class ScheduleFree(Hook):
    """A hook that calls ``train()`` and ``eval()`` of an optimizer of the package ``schedulefree``.

    Validation and the checkpoints of epochs have the averaged weights of ``eval()``.

    Raises:
        BuilderError: At the start of the run, if the optimizer lacks these methods.
    """

    def before_fit(self, context: HookContext) -> None:
        """Check the optimizer."""
        kind = type(context.optimizer)
        if not {"train", "eval"} <= {*dir(kind)}:
            raise BuilderError(
                f"the hook schedule_free calls train() and eval() of the optimizer, which {kind.__name__} "
                "lacks. Remove the hook, or use for example schedulefree:AdamWScheduleFree"
            )

    def before_epoch(self, context: HookContext) -> None:
        """Set the weights to those of the training."""
        optimizer: Any = context.optimizer
        optimizer.train()

    def before_validation(self, context: HookContext) -> None:
        """Set the weights to the average."""
        optimizer: Any = context.optimizer
        optimizer.eval()

    after_epoch = before_validation  # of an epoch without validation


def check_hook(hook: Any) -> None:
    """Raise `BuilderError` unless *hook* has a method of `Hook`, and those that it has fit."""
    name = type(hook).__name__
    for method in dir(hook):
        if method.startswith(PREFIXES) and method not in EVENTS:
            raise BuilderError(
                f"hook {name} has the attribute {method!r}, which no run calls.{closest(method, EVENTS)} The "
                f"methods are {', '.join(EVENTS)}. Rename it"
            )
    check_object(hook, "hook", "FrozenNorms()", *EVENTS)
    methods = _find_methods(hook)
    for method in [event for event in EVENTS if event in methods]:
        try:
            inspect.signature(methods[method]).bind(None)
        except TypeError as error:
            raise BuilderError(
                f"hook {name}: {method} must take one argument, the context: {error}"
            ) from None
    if ("state_dict" in methods) != ("load_state_dict" in methods):
        raise BuilderError(f"hook {name} defines only one of state_dict and load_state_dict: define both")


def _find_methods(hook: Any) -> dict[str, Callable[..., Any]]:
    """Return the methods of *hook* that a run calls, by name, without those of `Hook`."""
    methods = {name: getattr(type(hook), name, None) for name in (*EVENTS, "state_dict", "load_state_dict")}
    overridden = [name for name, method in methods.items() if method not in (None, vars(Hook)[name])]
    return {name: getattr(hook, name) for name in overridden}


class Hooks:
    """The hooks of a run, in the order in which they are called, and their state."""

    def __init__(self, hooks: Sequence[Any], model: nn.Module, optimizer: Optimizer) -> None:
        self.context = HookContext(model, optimizer)
        self._has_begun = False
        methods = [_find_methods(hook) for hook in hooks]
        self._calls = {event: [of_hook[event] for of_hook in methods if event in of_hook] for event in EVENTS}
        self._stateful = {
            f"{number} {type(hook).__name__}": hook
            for number, hook in enumerate(hooks)
            if "state_dict" in methods[number]
        }

    @property
    def follows_steps(self) -> bool:
        """True if a hook is called after each step."""
        return bool(self._calls["after_step"])

    def begin_epoch(self, epoch: int, step: int) -> None:
        """Set the position to batch *step* of *epoch*; before the first one, call ``before_fit``."""
        self.context.epoch, self.context.step = epoch, step
        if not self._has_begun:
            self.call("before_fit", step)
            self._has_begun = True  # not before: after an exception, `fit` may be called again

    def call(self, event: str, step: int = 0) -> None:
        """Call the hooks that have the method *event*."""
        self.context.step = step
        for method in self._calls[event]:
            method(self.context)

    def follow(self, stops_after: Callable[..., bool]) -> Callable[..., bool]:
        """Return *stops_after*, which takes the number of the batch; if needed, after a call of the hooks."""
        if not self.follows_steps:
            return stops_after

        def run(iteration: int, *arguments: Any) -> bool:
            self.call("after_step", iteration)
            return stops_after(iteration, *arguments)

        return run

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the hooks that have one. Raises `RecordError` if a record cannot hold it."""
        return {
            name: encode_state(hook.state_dict(), f"state_dict() of {type(hook).__name__}")
            for name, hook in self._stateful.items()
        }

    def load_state_dict(self, saved: Mapping[str, Any], *, warns: bool) -> None:
        """Load *saved*; with *warns*, log a warning for a hook that it lacks."""
        for name, hook in self._stateful.items():
            if name in saved:
                hook.load_state_dict(decode_state(saved[name]))
            elif warns:
                log.warning(
                    "the checkpoint has no state of the hook %s: the run will not equal an uninterrupted one",
                    name,
                )
