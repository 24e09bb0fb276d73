"""Schedulers of `torch.optim.lr_scheduler` and of your own, built from a name with its arguments."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from stages.contracts import plugins
from stages.contracts.errors import PluginError
from stages.optim.class_arguments import call_class, check_class_arguments
from stages.optim.schedules import BUILT_IN, FUNCTIONS, OUR_KINDS, ScheduleUse

HIDDEN = ("optimizer", "last_epoch")
"""Parameters of a scheduler that params.yaml cannot set."""
RATES = ("max_lr", "base_lr", "swa_lr")
"""Arguments of torch's schedulers that are the rate of the first group; the others keep their ratio to it."""
WITHOUT_OPTIMIZER = "ChainedScheduler"
"""The scheduler of torch whose first argument is not the optimizer."""


def build_class(config: ScheduleUse, optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Return the scheduler of *optimizer* that *config* names.

    Raises `PluginError` if its class cannot be found or called, or if the result is not a scheduler of torch.
    """
    return _build(config.kind, config.arguments, optimizer)


def find_class(kind: str, arguments: Mapping[str, Any]) -> Any:
    """Return the class named *kind*. Raises `PluginError` unless it exists and accepts *arguments*."""
    maker = plugins.find("schedule", kind, BUILT_IN)
    check_class_arguments("schedule", kind, maker, arguments, hidden=HIDDEN)
    return maker


def _build(kind: str, options: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> LRScheduler:
    maker = find_class(kind, options)
    arguments = {name: _resolve(name, value, optimizer) for name, value in options.items()}
    arguments = {name: _scale(name, value, optimizer) for name, value in arguments.items()}
    first = () if getattr(maker, "__name__", "") == WITHOUT_OPTIMIZER else (optimizer,)
    scheduler = call_class("schedule", kind, lambda: maker(*first, **arguments))
    if isinstance(scheduler, LRScheduler):
        return scheduler
    raise PluginError(
        f"schedule {kind!r} is a {type(scheduler).__name__}, which is not a scheduler of torch. Derive its "
        "class from torch.optim.lr_scheduler.LRScheduler"
    )


def _resolve(name: str, value: Any, optimizer: torch.optim.Optimizer) -> Any:
    """Return the argument *name* with functions for their import paths, and schedulers for their configs."""
    if name in FUNCTIONS:
        paths = value if isinstance(value, list | tuple) else [value]
        functions = [plugins.find("function", str(path), {}) for path in paths]
        return functions if isinstance(value, list | tuple) else functions[0]
    if name == "schedulers" and isinstance(value, list | tuple):
        return [_build_part(part, optimizer) for part in value]
    return value


def _scale(name: str, value: Any, optimizer: torch.optim.Optimizer) -> Any:
    """Return *value* for each group, in the ratio of their rates, if it is a rate that torch gives to all."""
    rates = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    if name not in RATES or len(set(rates)) == 1 or not rates[0] or not isinstance(value, int | float):
        return value
    return [value * (rate / rates[0]) for rate in rates]


def _build_part(part: Any, optimizer: torch.optim.Optimizer) -> LRScheduler:
    if not isinstance(part, Mapping) or not isinstance(part.get("kind"), str):
        raise PluginError(f"each of schedulers must be a mapping with a kind; found {part!r:.60}")
    if part["kind"] in OUR_KINDS:
        raise PluginError(
            f"a part of a scheduler of torch cannot be {part['kind']!r}, a schedule of Burn. Write the "
            "import path of a scheduler, for example torch.optim.lr_scheduler:LinearLR"
        )
    return _build(part["kind"], {key: value for key, value in part.items() if key != "kind"}, optimizer)
