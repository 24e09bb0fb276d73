"""Learning rate schedulers: schedules with their iteration, and adapters of those of PyTorch."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Real
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Literal, Protocol

from torch import device, nn, zeros
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau

from stages.contracts import plugins
from stages.contracts.burn import ScheduleState, Version
from stages.contracts.errors import BuilderError, CheckpointError, ParamsError, PluginError
from stages.contracts.history import Direction, Split
from stages.contracts.plugins import call_class, check_arguments, read_signature
from stages.contracts.user_code import place_of
from stages.optim.run_length import Per, RunLength, unit_of
from stages.optim.schedules import (
    BUILT_IN,
    FUNCTIONS,
    OUR_KINDS,
    Constant,
    Rule,
    Schedule,
    ScheduleUse,
    parse_monitor,
    with_restarts,
)

NOT_PER_GROUP = ("milestones", "schedulers")
"""Arguments of torch's schedulers whose list does not have an item for each group of the optimizer."""
CODE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type, partial, device)
"""Attributes of a scheduler that its constructor sets and no checkpoint stores."""
HIDDEN = ("optimizer", "last_epoch")
"""Parameters of a scheduler that params.yaml cannot set."""
RATES = ("max_lr", "base_lr", "swa_lr")
"""Arguments of torch's schedulers that are the rate of the first group; the others keep their ratio to it."""
RATES_PER_BLOCK = 64
"""The rates of a built-in rule that are computed at a time."""


class LrScheduler(Protocol):
    """A source of the learning rate of each batch. Burn's `LrScheduler`.

    If it has a true attribute ``drives_groups``, it sets the rates of the optimizer's groups itself. If it
    has an attribute ``monitored``, a split and a metric, it receives the epoch values of that metric.
    """

    def step(self) -> float:
        """Return the learning rate of the next batch."""

    def end_epoch(self, metric: float | None = None) -> None:
        """End an epoch whose validation loss or other monitored metric is *metric*; None if not measured."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from *state*."""


class Scheduler:
    """A schedule with its current iteration, which counts batches, or epochs if the schedule is per epoch.

    A schedule with spans, such as ``"10 %"`` of the run, needs `set_length` before its first step; a Learner
    calls it. Raises `ParamsError` if the initial rate is not above 0 or the schedule does not support it.
    """

    def __init__(self, initial: float, schedule: Schedule | None = None) -> None:
        check_rate(initial)
        self.initial = initial
        self.schedule = schedule or Constant()
        self.iteration = 0
        self._rule = self.schedule if isinstance(self.schedule, Rule) else None
        self.per: Per = "batch" if self._rule is None else self._rule.per
        self.steps_per_update = self.per == "update"
        """True if a step is an update of the model, not a batch."""
        self._steps: int | None = None
        """The steps of the run, if the schedule depends on them and they are known."""
        self._is_resolved = self._rule is None or not self._rule.spans
        self._rates: dict[int, float] = {}
        """The rates of the next iterations, computed together."""
        if self._rule is not None:
            self._rule.check(initial)

    def follow(self, version: Version, *, accumulates: bool) -> None:
        """Follow a *version* of Burn: up to 0.21 a cosine restarts; `unit_of` states what a step is."""
        if version == "0.21" and self._rule is not None:
            self.schedule = self._rule = with_restarts(self._rule)
            self._rates = {}
        self.steps_per_update = unit_of(self.per, version, accumulates=accumulates) == "update"

    def set_length(self, length: RunLength) -> None:
        """Set the length of the run.

        Raises `ParamsError` if a span of the schedule is longer than the run, and `BuilderError` if the
        schedule is resumed with another length than the one it started with.
        """
        if self._rule is None or not self._rule.spans:
            return
        unit: Per = "update" if self.steps_per_update else self.per
        is_share = any(span.endswith("%") for span in self._rule.spans)
        counted = length if is_share else replace(length, epochs=1)
        resolved, steps = self._rule.resolve(length, per=unit), counted.count(unit)
        if self._steps not in (None, steps):
            raise BuilderError(
                f"the schedule is a share of {'the run' if is_share else 'an epoch'}, which had "
                f"{self._steps} steps, one per {unit}, and now has {steps}: that is another run. Train for "
                "the same epochs of the same batches, or start in another directory"
            )
        self.schedule, self._steps, self._is_resolved = resolved, steps, True
        self._rates = {}

    @property
    def latest(self) -> float:
        """The rate of the last step."""
        return self._rate(max(self.iteration - 1, 0))

    @property
    def counts_updates(self) -> bool:
        """True if a batch that continues an accumulation window is not a step of its own."""
        return self.steps_per_update

    def continue_window(self) -> float:
        """Return the rate of a batch that continues an accumulation window."""
        return self.latest if self.steps_per_update else self.step()

    def step(self) -> float:
        """Return the rate of the current batch and advance to the next one.

        Raises `ParamsError` if the schedule's rate is not finite, and `BuilderError` if it needs the length
        of the run and does not have it.
        """
        rate = self._rates.get(self.iteration)
        if rate is None:
            rate = self._compute_rates(self.iteration)
        if self.per != "epoch":
            self.iteration += 1
        return rate

    def _compute_rates(self, first: int) -> float:
        """Return the rate of the iteration *first*, and store those of a block if the rule is built in."""
        rate = self._rate(first)
        if not math.isfinite(rate):
            raise ParamsError(
                f"the {type(self.schedule).__name__} schedule gives a learning rate of {rate} at iteration "
                f"{first}. Lower its rates or factors (build_learner.schedule in params.yaml)"
            )
        block = range(first, first + RATES_PER_BLOCK)
        if self._is_constant:
            self._rates = dict.fromkeys(block, rate)
        elif self._rule is not None:
            self._rates = {n: later for n in block if math.isfinite(later := self._rate(n))}
        return rate

    @property
    def _is_constant(self) -> bool:
        return type(self.schedule) is Constant and self.schedule.warmup is None

    def _rate(self, iteration: int) -> float:
        if not self._is_resolved:
            raise BuilderError(
                f"the schedule {self} depends on the length of the run, which is unknown: pass a train "
                "loader with a length, call set_length, or state numbers of steps"
            )
        if isinstance(self.schedule, Rule):
            return self.schedule.rate_with_warmup(self.initial, iteration)
        return self.schedule.rate(self.initial, iteration)

    def end_epoch(self, metric: float | None = None) -> None:  # noqa: ARG002  required by the protocol
        """Advance to the next iteration if an iteration is an epoch."""
        if self.per == "epoch":
            self.iteration += 1

    def count_epochs(self, epochs: int) -> None:
        """Set the iteration to the number of finished *epochs*, if an iteration is an epoch."""
        if self.per == "epoch":
            self.iteration = epochs

    def __str__(self) -> str:
        """Return the kind of the schedule and the unit of an iteration."""
        kind = self._rule.name if self._rule else type(self.schedule).__name__
        if self._is_constant:
            return kind
        per = "update" if self.steps_per_update else self.per
        warmup = f", after {self._rule.warmup} of warm-up" if self._rule and self._rule.warmup else ""
        return f"{kind}, one step per {per}{warmup}"

    def burn_state(self) -> Any:
        """Return the state that Burn would save, or the iteration if Burn lacks the schedule."""
        if isinstance(self.schedule, Rule) and self._is_resolved:
            return self.schedule.burn_state(
                self.initial, max(self.iteration - (self.schedule.warmup or 0), 0)
            )
        return self.iteration

    def state_dict(self) -> dict[str, Any]:
        """Return the iteration, and the steps of the run, or of an epoch, if the schedule depends on them."""
        steps = {} if self._steps is None else {"steps": self._steps}
        return {"iteration": self.iteration, **steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the ``iteration`` in *state*. Raises `CheckpointError` if it is missing."""
        if not isinstance(state.get("iteration"), int):
            raise CheckpointError(
                f"the state of a scheduler has an integer 'iteration'; found {state}. "
                "Use a checkpoint of this version"
            )
        self.iteration, self._steps = state["iteration"], state.get("steps")


class GroupScheduler(Scheduler):
    """A scheduler, and those of groups of parameters of *optimizer* that have one of their own.

    *sources* has the scheduler of each group: *base*, or another one. Of several groups with one scheduler,
    those after the first keep the ratio of their rates to its rate. Burn's ``ModuleLrScheduler``.
    """

    drives_groups = True
    """The scheduler sets the rates of the groups."""

    def __init__(self, optimizer: Optimizer, base: Scheduler, sources: Sequence[Scheduler]) -> None:
        super().__init__(base.initial, base.schedule)
        self.own = [source for source in dict.fromkeys(sources) if source is not base]
        """The schedulers of groups, in the order of their groups."""
        self._optimizer = optimizer
        self._sources = [self if source is base else source for source in sources]
        first = {id(self): float(optimizer.param_groups[0]["lr"])}
        self._ratios = []
        for source, group in zip(self._sources, optimizer.param_groups, strict=True):
            rate = float(group["lr"])
            self._ratios.append(rate / first.setdefault(id(source), rate))

    def follow(self, version: Version, *, accumulates: bool) -> None:
        """Follow a *version* of Burn with each scheduler."""
        super().follow(version, accumulates=accumulates)
        for scheduler in self.own:
            scheduler.follow(version, accumulates=accumulates)

    def set_length(self, length: RunLength) -> None:
        """Set the length of the run for each scheduler."""
        super().set_length(length)
        for scheduler in self.own:
            scheduler.set_length(length)

    @property
    def counts_updates(self) -> bool:
        """True if any of the schedulers counts updates."""
        return any(scheduler.steps_per_update for scheduler in (self, *self.own))

    def step(self) -> float:
        """Return the rate of the first group for the current batch, and set those of all groups."""
        return self._set_rates(super().step(), [scheduler.step() for scheduler in self.own])

    def continue_window(self) -> float:
        """Do what `step` does in an accumulation window, in which some of the schedulers keep their rate."""
        first = self.latest if self.steps_per_update else super().step()
        return self._set_rates(first, [scheduler.continue_window() for scheduler in self.own])

    def _set_rates(self, first: float, others: Sequence[float]) -> float:
        rates = {id(self): first} | dict(zip(map(id, self.own), others, strict=True))
        parts = zip(self._optimizer.param_groups, self._sources, self._ratios, strict=True)
        for group, source, ratio in parts:
            group["lr"] = rates[id(source)] * ratio
        return first

    def end_epoch(self, metric: float | None = None) -> None:
        """Advance each scheduler whose iteration is an epoch."""
        super().end_epoch(metric)
        for scheduler in self.own:
            scheduler.end_epoch(metric)

    def count_epochs(self, epochs: int) -> None:
        """Set the iteration of each scheduler to the number of *epochs*, if that is its unit."""
        super().count_epochs(epochs)
        for scheduler in self.own:
            scheduler.count_epochs(epochs)

    def burn_state(self) -> Any:
        """Return the state that Burn 0.22 would save; 0.21 has no schedules of groups."""
        states = [super().burn_state(), *(scheduler.burn_state() for scheduler in self.own)]
        if all(isinstance(state, ScheduleState) for state in states):
            return ScheduleState("Groups", parts=tuple(states))
        return self.iteration

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each scheduler."""
        return {**super().state_dict(), "groups": [scheduler.state_dict() for scheduler in self.own]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from *state*. Raises `CheckpointError` if it is one of other groups."""
        super().load_state_dict(state)
        groups = state.get("groups", [])
        if len(groups) != len(self.own):
            raise CheckpointError(
                f"the checkpoint has schedules of {len(groups)} groups, and the run of {len(self.own)}. Use "
                "the groups of the checkpoint"
            )
        for scheduler, saved in zip(self.own, groups, strict=True):
            scheduler.load_state_dict(saved)


def check_rate(rate: float) -> None:
    """Raise `ParamsError` unless *rate* is a finite number above 0."""
    if not 0 < rate < math.inf:
        raise ParamsError(
            f"the learning rate must be finite and above 0; found {rate}. Set, for example, 1e-3"
        )


def build_step(scheduler: LrScheduler) -> Callable[[], float]:
    """Return the ``step`` of *scheduler*; one of a user raises `BuilderError` for an invalid rate."""
    step = scheduler.step
    if isinstance(scheduler, Scheduler | TorchScheduler | OptimizerRate):
        return step

    def run() -> float:
        rate = step()
        try:
            is_valid = 0 <= rate < math.inf
        except TypeError:
            is_valid = False
        if not is_valid:
            kind = type(scheduler)
            raise BuilderError(
                f"{kind.__name__}.step{place_of(kind.step)} returned the learning rate {rate!r}: return a "
                "finite number from 0"
            )
        return rate

    return run


class TorchScheduler:
    """An adapter for a scheduler of PyTorch, which sets the learning rates of its optimizer's groups.

    It steps after each batch or each epoch. ``ReduceLROnPlateau`` steps after each epoch only, with the
    epoch's value of the metric *monitor*: ``"Accuracy"`` or ``"valid Accuracy"`` of the valid split,
    ``"train Loss"`` of the train split. The default is the validation loss. Raises `BuilderError` for a
    ``ReduceLROnPlateau`` of ``mode="max"`` without a *monitor*, and for a *monitor* of any other scheduler.
    """

    drives_groups = True
    """The scheduler sets the rates of the groups."""

    def __init__(
        self,
        scheduler: LRScheduler,
        per: Literal["batch", "epoch"] = "batch",
        *,
        monitor: str | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._mode = scheduler.mode if isinstance(scheduler, ReduceLROnPlateau) else None
        self.is_plateau = self._mode is not None
        self.per = "epoch" if self.is_plateau else per
        self._check_monitor(monitor)
        self.monitored = parse_monitor(monitor)
        """The split and the metric whose epoch value is passed to `end_epoch`."""
        self._started = False
        # otherwise torch warns after a batch whose gradients were only accumulated
        scheduler.optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001

    @property
    def needs(self) -> set[tuple[Split, str]]:
        """The epoch values that it needs, as split and metric; only ``ReduceLROnPlateau`` needs one."""
        return {self.monitored} if self.is_plateau else set()

    @property
    def direction(self) -> Direction:
        """The direction in which the monitored metric improves."""
        return Direction.HIGHEST if self._mode == "max" else Direction.LOWEST

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of a scheduler of torch that its state contains; none of any other scheduler."""
        kind, state = type(self.scheduler), vars(self.scheduler)
        if not kind.__module__.startswith("torch.optim"):
            return {}
        names = [name for name in read_signature(kind).parameters if name in state and name not in HIDDEN]
        return {name: state[name] for name in names if not _is_code(state[name])}

    def step(self) -> float:
        """Return the rate of the first group for the next batch; the optimizer holds the other rates."""
        if self.per == "batch" and self._started:
            self._advance()
        self._started = True
        return float(self.scheduler.optimizer.param_groups[0]["lr"])

    def end_epoch(self, metric: float | None = None) -> None:
        """Step if an iteration is an epoch; *metric* is the epoch value of the monitored metric."""
        if self.per == "batch":
            return
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self._advance()
        elif metric is not None:
            self.scheduler.step(metric)
        else:
            split, name = self.monitored
            raise BuilderError(
                f"ReduceLROnPlateau monitors the {split} {name!r}, but this epoch has no such value. "
                f"Register a {name} metric for the {split} split"
            )

    def set_length(self, length: RunLength) -> None:
        """Raise `BuilderError` if the schedule ends before a run of *length*."""
        needed = length.count(self.per) - (self.per == "batch")
        match self.scheduler:
            case object(total_steps=int(steps)) if steps < needed:
                raise BuilderError(
                    f"the {type(self.scheduler).__name__} has total_steps {steps}, but the run makes "
                    f"{needed} steps, one per {self.per}. Set total_steps to {needed}, or train for fewer "
                    "epochs"
                )

    def _check_monitor(self, monitor: str | None) -> None:
        if monitor is not None and self._mode is None:
            raise BuilderError(
                f"a {type(self.scheduler).__name__} does not monitor a metric, but monitor is {monitor!r}. "
                "Remove it"
            )
        if monitor is None and self._mode == "max":
            raise BuilderError(
                "a ReduceLROnPlateau of mode='max' cannot monitor the validation loss, which should "
                "decrease. Name its metric, for example TorchScheduler(scheduler, monitor='Accuracy'), or "
                "use mode='min'"
            )

    def _advance(self) -> None:
        try:
            self.scheduler.step()
        except ValueError as error:  # a schedule of a fixed length has ended
            raise BuilderError(
                f"the {type(self.scheduler).__name__} cannot make another step per {self.per}: {error}"
            ) from error

    def __str__(self) -> str:
        """Return the class, the unit of a step, and the monitored metric."""
        monitors = f", monitors {' '.join(self.monitored)}" if self.is_plateau else ""
        return f"{type(self.scheduler).__name__}, one step per {self.per}{monitors}"

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state without its functions, which the constructor sets."""
        return {"started": self._started, "scheduler": _drop_code(self.scheduler.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from *state*; the options must be the same. The optimizer's state holds the rates."""
        if not isinstance(state.get("scheduler"), dict):
            raise CheckpointError(
                f"the state of a PyTorch scheduler has the key 'scheduler'; found {sorted(state)}, which "
                "another kind of scheduler saved. Build the learner with the same kind of scheduler"
            )
        self._started = bool(state["started"])
        self.scheduler.load_state_dict(copy.deepcopy(state["scheduler"]))


class OptimizerRate:
    """The current learning rates of an optimizer, which the user's code may change at any time.

    Raises `ParamsError` if the initial rate of the first group is not above 0.
    """

    drives_groups = True
    """The groups keep their rates."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        check_rate(self._rate)

    def step(self) -> float:
        """Return the rate of the first group."""
        return self._rate

    def end_epoch(self, metric: float | None = None) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict, because the optimizer's state holds the rates."""
        return {}

    def __str__(self) -> str:
        """Return that the optimizer keeps its rates."""
        return "the rates of the optimizer"

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore *state*, which may also be that of a constant schedule."""

    @property
    def _rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


def build_torch_scheduler(config: ScheduleUse, optimizer: Optimizer) -> TorchScheduler:
    """Return the scheduler of *optimizer* that *config* names.

    Raises `PluginError` or `BuilderError` if it does not exist, or does not accept its arguments.
    """
    scheduler = _build(config.kind, config.arguments, optimizer)
    return TorchScheduler(scheduler, config.per or "epoch", monitor=config.monitor)


def check_schedule_class(config: ScheduleUse) -> None:
    """Raise `PluginError` or `BuilderError` unless the class that *config* names accepts its arguments.

    The values of the arguments are checked only if it is a class of torch.
    """
    if find_class(config.kind, config.arguments).__module__.startswith("torch.optim"):
        lists = [argument for name, argument in config.arguments.items() if name not in NOT_PER_GROUP]
        count = max([len(argument) for argument in lists if isinstance(argument, list)], default=1)
        groups = [{"params": [nn.Parameter(zeros(1, device="cpu"))]} for _ in range(count)]
        build_torch_scheduler(config, SGD(groups, lr=0.1, momentum=0.9))


def as_scheduler(
    optimizer: Optimizer, lr: float | LrScheduler | LRScheduler | ScheduleUse | Rule | None
) -> LrScheduler:
    """Return *lr* as a scheduler: a number is a constant rate, None the optimizer's own rate.

    A schedule of `stages.optim` without an initial rate starts at the optimizer's own.

    A scheduler of PyTorch steps after each batch, as Burn's do; to step after each epoch, pass
    ``TorchScheduler(scheduler, per="epoch")``. A ``ReduceLROnPlateau`` follows the validation loss; for
    another metric, pass ``TorchScheduler(scheduler, monitor="Accuracy")``. Raises `BuilderError` if the
    scheduler belongs to another optimizer, or if *lr* has no method ``step``.
    """
    if isinstance(lr, ScheduleUse):
        return build_torch_scheduler(lr, optimizer)
    if isinstance(lr, LRScheduler):
        lr = TorchScheduler(lr)
    if isinstance(lr, TorchScheduler) and lr.scheduler.optimizer is not optimizer:
        raise BuilderError(
            f"the {type(lr.scheduler).__name__} belongs to a different optimizer. Create it with the "
            "optimizer that is passed to build"
        )
    if lr is None:
        return OptimizerRate(optimizer)
    if isinstance(lr, Rule):
        return Scheduler(float(optimizer.param_groups[0]["lr"]), lr)
    if isinstance(lr, float | Real):
        return Scheduler(float(lr))
    match lr:
        case object(step=step) if callable(step) and not isinstance(lr, type):
            return lr
    raise BuilderError(
        f"the learning rate cannot be {lr!r}. Pass a number, a scheduler of stages.optim "
        "or of torch, an object with the methods of LrScheduler (step, end_epoch …), or None for the "
        "optimizer's own rate"
    )


def _is_code(value: Any) -> bool:
    """Return whether *value*, or each of its items, belongs to the program and not to the state of a run."""
    if isinstance(value, list | tuple | dict) and value:
        return all(map(_is_code, value.values() if isinstance(value, dict) else value))
    return isinstance(value, CODE)


def _drop_code(node: Any) -> Any:
    """Return *node* without the entries of dicts that are functions, classes or devices."""
    if type(node) is dict:
        return {key: _drop_code(value) for key, value in node.items() if not _is_code(value)}
    return type(node)(map(_drop_code, node)) if type(node) in (list, tuple) else node


def find_class(kind: str, arguments: Mapping[str, Any]) -> Any:
    """Return the class named *kind*. Raises `PluginError` unless it exists and accepts *arguments*."""
    maker = plugins.find("schedule", kind, BUILT_IN)
    check_arguments("schedule", kind, maker, arguments, hidden=HIDDEN)
    return maker


def _build(kind: str, options: Mapping[str, Any], optimizer: Optimizer) -> LRScheduler:
    """Return the scheduler of *optimizer* of the class *kind*.

    Raises `PluginError` if that cannot be found or called, or if the result is not a scheduler of torch.
    """
    maker = find_class(kind, options)
    arguments = {name: _resolve(name, value, optimizer) for name, value in options.items()}
    arguments = {name: _scale(name, value, optimizer) for name, value in arguments.items()}
    first = () if maker is ChainedScheduler else (optimizer,)  # torch takes it from the parts
    scheduler = call_class("schedule", kind, lambda: maker(*first, **arguments))
    if isinstance(scheduler, LRScheduler):
        return scheduler
    raise PluginError(
        f"schedule {kind!r} is a {type(scheduler).__name__}, which is not a scheduler of torch. Derive its "
        "class from torch.optim.lr_scheduler.LRScheduler"
    )


def _resolve(name: str, value: Any, optimizer: Optimizer) -> Any:
    """Return the argument *name* with functions for their import paths, and schedulers for their configs."""
    if name in FUNCTIONS:
        paths = value if isinstance(value, list | tuple) else [value]
        functions = [plugins.find("function", str(path), {}) for path in paths]
        return functions if isinstance(value, list | tuple) else functions[0]
    if name == "schedulers" and isinstance(value, list | tuple):
        return [_build_part(part, optimizer) for part in value]
    return value


def _scale(name: str, value: Any, optimizer: Optimizer) -> Any:
    """Return *value* for each group, in the ratio of their rates, if it is a rate that torch gives to all."""
    rates = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    if name not in RATES or len(set(rates)) == 1 or not rates[0] or not isinstance(value, int | float):
        return value
    return [value * (rate / rates[0]) for rate in rates]


def _build_part(part: Any, optimizer: Optimizer) -> LRScheduler:
    if not isinstance(part, Mapping) or not isinstance(part.get("kind"), str):
        raise PluginError(f"each of schedulers must be a mapping with a kind; found {part!r:.60}")
    if part["kind"] in OUR_KINDS:
        raise PluginError(
            f"a part of a scheduler of torch cannot be {part['kind']!r}, a schedule of Burn. Write the "
            "import path of a scheduler, for example torch.optim.lr_scheduler:LinearLR"
        )
    return _build(part["kind"], {key: value for key, value in part.items() if key != "kind"}, optimizer)
