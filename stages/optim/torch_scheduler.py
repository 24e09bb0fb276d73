"""Learning rate schedulers of PyTorch: their adapter, and what builds one that params.yaml names."""

import copy
from collections.abc import Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Literal

from torch import device, nn, zeros
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau

from stages.contracts import plugins
from stages.contracts.errors import BuilderError, CheckpointError, PluginError
from stages.contracts.history import Direction, Split
from stages.contracts.plugins import call_class, check_arguments, read_signature
from stages.optim.run_length import RunLength
from stages.optim.schedules import BUILT_IN, FUNCTIONS, OUR_KINDS, ScheduleUse, parse_monitor

NOT_PER_GROUP = ("milestones", "schedulers")
"""Arguments of torch's schedulers whose list does not have an item for each group of the optimizer."""
CODE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type, partial, device)
"""Attributes of a scheduler that its constructor sets and no checkpoint stores."""
HIDDEN = ("optimizer", "last_epoch")
"""Parameters of a scheduler that params.yaml cannot set."""
RATES = ("max_lr", "base_lr", "swa_lr")
"""Arguments of torch's schedulers that are the rate of the first group; the others keep their ratio to it."""


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
            self._advance(metric)
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

    def _advance(self, *metric: Any) -> None:
        try:
            self.scheduler.step(*metric)
        except (TypeError, ValueError) as error:  # an argument of a wrong type, or a schedule that has ended
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
