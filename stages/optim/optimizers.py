"""PyTorch optimizers built from their configuration."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stages.contracts import plugins
from stages.contracts.errors import PluginError
from stages.contracts.plugins import call_class, check_arguments, read_signature
from stages.optim import burn_optimizers
from stages.optim.burn_optimizers import CautiousAdamW, MuonOfBurn, evaluate, is_sharded
from stages.optim.config import (
    BUILT_IN,
    NOT_PER_GROUP,
    Adam,
    AdamW,
    Muon,
    OptimizerConfig,
    OptimizerUse,
    Sgd,
)
from stages.optim.fused_kernels import is_dense, is_skipped_by_sgd
from stages.optim.torch_patches import without_dynamo

FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")
NAMES_IN_TORCH = {
    "learning_rate": "lr",
    "epsilon": "eps",
    "adjust_lr": "adjust_lr_fn",
    "line_search": "line_search_fn",
}
"""The options that torch calls by another name."""
CAUTIOUS = "cautious_weight_decay"
SIMPLE: Mapping[str, Any] = {
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adan": burn_optimizers.Adan,
    "lion": burn_optimizers.Lion,
    "lamb": burn_optimizers.Lamb,
    "lbfgs": torch.optim.LBFGS,
}
"""The classes of which each option of params is an argument."""


Part = tuple[OptimizerConfig, list[Tensor]]
"""A group of parameters with the config of its options."""


HIDDEN = ("params", "lr")
"""Parameters of an optimizer that params.yaml cannot set; ``learning_rate`` becomes ``lr``."""


def build_optimizer(config: OptimizerConfig, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Return the PyTorch optimizer of *parameters*, in its fused form if it is one of Burn's and has one.

    The optimizer does not clip: pass ``config.clipping`` to the `Stepper`.

    At the same settings, PyTorch differs from Burn as follows: the fused Adam corrects the bias in float64
    and in another order of operations (last digits); Muon averages the momentum instead of summing it, which
    the orthogonalization cancels, and iterates in bfloat16. The other optimizers differ by rounding only.
    """
    return build_from_parts([(config, list(parameters))])


def build_from_parts(parts: Sequence[Part]) -> torch.optim.Optimizer:
    """Return the optimizer of the first of *parts*, with a group for each part.

    Parts of other kinds are updated by an optimizer of their own, and `JoinedOptimizer` joins them. The first
    part may be empty: the rates of the others are ratios to its rate.
    """
    by_kind: dict[str, list[Part]] = {}
    for config, members in parts:
        by_kind.setdefault(config.kind, []).append((config, members))
    with without_dynamo():
        built = [_build(of_kind) for of_kind in by_kind.values()]
    return built[0] if len(built) == 1 else JoinedOptimizer(built)


def _build(parts: Sequence[Part]) -> torch.optim.Optimizer:
    config = parts[0][0]
    parameters = [parameter for _, members in parts for parameter in members]
    groups = _groups(parts)
    match config:
        case Adam() | AdamW():
            fused = _can_be_fused(parameters)
            if any(isinstance(part, AdamW) and part.cautious_weight_decay for part, _ in parts):
                groups = [{"params": members, CAUTIOUS: 0.0, **_options(part)} for part, members in parts]
                return CautiousAdamW(groups, lr=config.learning_rate, fused=fused)
            kind = torch.optim.AdamW if isinstance(config, AdamW) else torch.optim.Adam
            return kind(groups, **_options(config), fused=fused)
        case Sgd():
            # torch cannot fuse shards
            unfusible = any(is_sharded(parameter) or is_skipped_by_sgd(parameter) for parameter in parameters)
            fused = _can_be_fused(parameters) and not unfusible
            return _build_sgd(groups, fused=fused, **_options(config))
        case Muon():
            return MuonWithAdamW(_build_muon(parts))
        case OptimizerUse():
            return build_class(config, groups)
    optimizer: torch.optim.Optimizer = SIMPLE[config.kind](groups, **_options(config))
    return optimizer


def _options(config: OptimizerConfig) -> dict[str, Any]:
    """Return the options of *config* by their names in torch."""
    if isinstance(config, OptimizerUse):
        rate = {} if config.learning_rate is None else {"lr": config.learning_rate}
        return rate | config.arguments
    named: dict[str, Any] = {
        NAMES_IN_TORCH.get(name, name): value for name, value in config if name not in NOT_PER_GROUP
    }
    betas = tuple(named.pop(name) for name in ("beta_1", "beta_2", "beta_3") if name in named)
    if betas:
        named["betas"] = betas
    if named.pop(CAUTIOUS, False):
        named[CAUTIOUS], named["weight_decay"] = named["weight_decay"], 0.0
    if isinstance(config, Sgd):
        named["momentum"] = config.momentum or 0.0
        named["dampening"] = config.dampening if config.momentum else 0.0
    return named


def _build_sgd(groups: Any, *, dampening: float, fused: bool, **options: Any) -> torch.optim.SGD:
    """Return SGD. Its constructor refuses nesterov with dampening, which its step supports."""
    dampened = [group.pop("dampening") for group in groups if isinstance(group, dict)]
    optimizer = torch.optim.SGD(groups, fused=fused, **options)
    for group, own in zip(optimizer.param_groups, dampened or [dampening], strict=True):
        group["dampening"] = own
    return optimizer


def _build_muon(parts: Sequence[Part]) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of *parts*, and AdamW for all other parameters.

    Muon comes first also without a matrix, because the rates of AdamW are ratios to its rate.
    """
    matrices: list[Part] = [
        (config, [tensor for tensor in members if tensor.ndim == 2]) for config, members in parts
    ]
    others: list[Part] = [
        (
            config.others if isinstance(config, Muon) else config,
            [tensor for tensor in members if tensor.ndim != 2],
        )
        for config, members in parts
    ]
    of_matrices = _without_empty(matrices)
    built: list[torch.optim.Optimizer] = [MuonOfBurn(_groups(of_matrices), **_options(matrices[0][0]))]
    if any(members for _, members in others):
        built.append(_build(_without_empty(others)))
    return built


def _without_empty(parts: list[Part]) -> list[Part]:
    """Return the first of *parts*, whose rate is the reference, and those that have parameters."""
    return [parts[0], *(part for part in parts[1:] if part[1])]


def _groups(parts: Sequence[Part]) -> Any:
    """Return the parameters of one part, or a group with its options for each of several or an empty one."""
    if len(parts) == 1 and parts[0][1]:
        return parts[0][1]
    return [{"params": members, **_options(config)} for config, members in parts]


def _can_be_fused(parameters: list[Tensor]) -> bool:
    """Return whether PyTorch's fused optimizers accept *parameters*."""
    return all(
        parameter.is_floating_point() and parameter.device.type in FUSED_DEVICES and is_dense(parameter)
        for parameter in parameters
    )


class JoinedOptimizer(torch.optim.Optimizer):
    """Several optimizers, each with parameters of its own, as one optimizer.

    *parts*, the PyTorch optimizers, share one state and one list of groups, in their order.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts: list[tuple[torch.optim.Optimizer, int]] = []
        """Each optimizer with the number of its groups."""
        for part in parts:
            joined = part.parts if isinstance(part, JoinedOptimizer) else [(part, len(part.param_groups))]
            self.parts += joined
        super().__init__([group for part in parts for group in part.param_groups], {})

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has; that of torch would lack the parts."""
        return {**super().__getstate__(), "parts": self.parts}

    def part_of(self, group: Mapping[str, Any]) -> torch.optim.Optimizer:
        """Return the optimizer that updates the parameters of *group*, one of ``param_groups``."""
        owners = [part for part, count in self.parts for _ in range(count)]
        return next(owner for owner, other in zip(owners, self.param_groups, strict=True) if other is group)

    def use_burn_axes(self, transposed: Sequence[Tensor]) -> None:
        """Compute the factor of the learning rate from Burn's axes, which the matrices *transposed* lack."""
        for part, _ in self.parts:
            if isinstance(part, MuonOfBurn):
                part.transposed = transposed

    def step(self, closure: Any = None) -> Any:
        """Step both optimizers, with the current groups and state of this one."""
        loss = evaluate(closure)
        start = 0
        for part, count in self.parts:
            part.param_groups, part.state = self.param_groups[start : start + count], self.state
            part.step()
            start += count
        return loss


class MuonWithAdamW(JoinedOptimizer):
    """Muon for the matrices of a model and AdamW for all other parameters; the matrices come first."""


def build_class(config: OptimizerUse, parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Return the optimizer of *parameters*, tensors or groups, that *config* names.

    Raises `PluginError` if its class cannot be found or called, or if the result is not an optimizer.
    """
    maker = _find(config)
    optimizer = call_class("optimizer", config.kind, lambda: maker(list(parameters), **_options(config)))
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
        build_class(config, [torch.nn.Parameter(torch.zeros(2, 2, device="cpu"))])
    else:
        learning_rate_of(config)


def learning_rate_of(config: OptimizerConfig) -> float:
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
    check_arguments("optimizer", config.kind, maker, arguments, hidden=HIDDEN)
    return maker
