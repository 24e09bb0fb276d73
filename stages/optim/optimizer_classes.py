"""Optimizers of `torch.optim` and of your own, built from a name or an import path with its arguments."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from stages.contracts import plugins
from stages.contracts.errors import PluginError
from stages.optim.class_arguments import call_class, check_class_arguments, read_signature
from stages.optim.config import BUILT_IN, OptimizerUse

HIDDEN = ("params", "lr")
"""Parameters of an optimizer that params.yaml cannot set; ``learning_rate`` becomes ``lr``."""


def build_class(config: OptimizerUse, parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Return the optimizer of *parameters*, tensors or groups, that *config* names.

    Raises `PluginError` if its class cannot be found or called, or if the result is not an optimizer.
    """
    maker = _find(config)
    rate = {} if config.learning_rate is None else {"lr": config.learning_rate}
    optimizer = call_class(
        "optimizer", config.kind, lambda: maker(list(parameters), **rate, **config.arguments)
    )
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    raise PluginError(
        f"optimizer {config.kind!r} is a {type(optimizer).__name__}, which is not a torch.optim.Optimizer. "
        "Derive its class from torch.optim.Optimizer"
    )


def check_class(config: OptimizerUse) -> None:
    """Raise `PluginError` unless *config* names a class that accepts its arguments.

    The values are checked too if it is a class of torch.
    """
    if _find(config).__module__.startswith("torch.optim"):
        build_class(config, [torch.nn.Parameter(torch.zeros(2, 2))])
    else:
        default_rate(config)


def default_rate(config: OptimizerUse) -> float:
    """Return the learning rate of *config*, by default that of its class.

    Raises `PluginError` if its class has none.
    """
    if config.learning_rate is not None:
        return config.learning_rate
    rate = read_signature(_find(config)).parameters.get("lr")
    if rate is not None and isinstance(rate.default, int | float | Tensor):
        return float(rate.default)
    raise PluginError(
        f"optimizer {config.kind!r} has no default learning rate. Set learning_rate in "
        "build_learner.optimizer"
    )


def _find(config: OptimizerUse) -> Any:
    maker = plugins.find("optimizer", config.kind, BUILT_IN)
    arguments: Mapping[str, Any] = config.arguments
    check_class_arguments("optimizer", config.kind, maker, arguments, hidden=HIDDEN)
    return maker
