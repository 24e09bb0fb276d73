"""Options for groups of parameters, which patterns select by their names, and frozen parameters."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor, nn

from stages.contracts.errors import BuilderError
from stages.contracts.text import join_names
from stages.optim.config import (
    BIASES_AND_NORMS,
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    OptimizerConfig,
    ParameterGroup,
    check_groups,
)
from stages.optim.optimizers import JoinedOptimizer, build_from_parts, build_optimizer
from stages.optim.scheduler import GroupScheduler, LrScheduler, Scheduler

MAX_LISTED_NAMES = 8
NORM = r"Norm(\dd)?$"
"""The end of the name of a class that normalizes, of torch or of a user."""


@dataclass(frozen=True)
class GroupedOptimizer:
    r"""The config of an optimizer with options for groups of parameters, and with frozen parameters:

        GroupedOptimizer(
            AdamW(learning_rate=1e-3),
            groups=(ParameterGroup(match="biases_and_norms", weight_decay=0.0),),
            freeze=(r"^backbone\.",),
        )

    A parameter belongs to the first group that matches one of its names; all others have the options of the
    config. A group may have an optimizer of its own, as in ``ParameterGroup(match="fc", optimizer=Muon())``.
    A schedule changes the learning rate of a group in proportion to that of the config, unless the group has
    one too.
    """

    config: OptimizerConfig
    groups: tuple[ParameterGroup, ...] = ()
    freeze: tuple[str, ...] = ()
    """Patterns of parameters that are not trained: they need no gradient, and the optimizer lacks them."""

    @property
    def kind(self) -> str:
        """The kind of the optimizer."""
        return self.config.kind

    @property
    def clipping(self) -> ClipByValue | ClipByNorm | ClipByGlobalNorm | None:
        """The limit of the gradients."""
        return self.config.clipping


def build_model_optimizer(
    config: OptimizerConfig | GroupedOptimizer, model: nn.Module
) -> torch.optim.Optimizer:
    """Return the optimizer of *model*, whose frozen parameters no longer need a gradient.

    Raises `BuilderError` for a pattern without a match and for a group without parameters, and `ParamsError`
    for an option that the optimizer lacks.
    """
    if not isinstance(config, GroupedOptimizer):
        return _use_burn_axes(build_optimizer(config, model.parameters()), model)
    check_groups(config.config, config.groups)
    return _use_burn_axes(build_from_parts(_split(config, model)), model)


def schedule_groups(
    config: GroupedOptimizer, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: LrScheduler
) -> LrScheduler:
    """Return *scheduler* with the schedules of the groups of *config*, if there are any, for *optimizer*.

    Raises `BuilderError` if groups have schedules and *scheduler* is of PyTorch or a user.
    """
    if not any(group.schedule for group in config.groups):
        return scheduler
    if not isinstance(scheduler, Scheduler):
        raise BuilderError(
            f"a group has a schedule, but that of the other parameters is a {type(scheduler).__name__}. Use "
            "schedules of stages.optim for all of them"
        )
    numbers = {
        id(tensor): number for number, (_, tensors) in enumerate(_split(config, model)) for tensor in tensors
    }
    own: dict[int, Scheduler] = {}
    sources = []
    for group in optimizer.param_groups:
        number = numbers[id(group["params"][0])] if group["params"] else 0
        rule = config.groups[number - 1].schedule if number else None
        if rule is not None:
            own.setdefault(number, Scheduler(float(group["lr"]), rule))
        sources.append(own.get(number, scheduler))
    return GroupScheduler(optimizer, scheduler, sources)


def _use_burn_axes(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Return *optimizer*; if it is a Muon, it reads the weights of linear layers with Burn's axes.

    A weight that is computed from other parameters is left out: to read it may change the layer.
    """
    if isinstance(optimizer, JoinedOptimizer):
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        parameters = [dict(layer.named_parameters(recurse=False)) for layer in layers]
        optimizer.use_burn_axes([named["weight"] for named in parameters if "weight" in named])
    return optimizer


def freeze_parameters(model: nn.Module, patterns: Sequence[str]) -> set[int]:
    """Set ``requires_grad`` of the parameters that *patterns* match to False, and return their ids.

    Raises `BuilderError` for a pattern without a match, and if no parameter is left to train.
    """
    frozen, count = find_parameters(model, patterns, "build_learner.freeze"), len(list(model.parameters()))
    if len(frozen) == count:
        raise BuilderError(
            f"build_learner.freeze: {list(patterns)} match all {count} parameters, so none is left to "
            "train. Remove a pattern"
        )
    for parameter in frozen:
        parameter.requires_grad = False
    return {id(parameter) for parameter in frozen}


def find_parameters(model: nn.Module, patterns: Sequence[str], where: str) -> list[Tensor]:
    """Return the parameters of *model* that *patterns*, the param *where*, match, each once.

    Raises `BuilderError` for a pattern without a match.
    """
    named = _list_parameters(model)
    for pattern in patterns:
        _check_match(pattern, named, where)
    return [parameter.tensor for parameter in named if any(map(parameter.is_matched, patterns))]


def is_norm(module: nn.Module) -> bool:
    """Return whether the class of *module* is a normalization, by its name."""
    return re.search(NORM, type(module).__name__) is not None


@dataclass(frozen=True)
class _Named:
    """A parameter with its names, of which a tied parameter has several."""

    tensor: Tensor
    names: tuple[str, ...]
    is_of_norm: bool
    """True for a parameter of a normalization, which has several dimensions if that has several axes."""

    def is_matched(self, pattern: str) -> bool:
        if pattern == BIASES_AND_NORMS:
            is_bias = any(name.endswith("bias") for name in self.names)
            return self.tensor.ndim <= 1 or self.is_of_norm or is_bias
        return any(re.search(pattern, name) for name in self.names)


def _list_parameters(model: nn.Module) -> list[_Named]:
    """Return the parameters of *model*, in their order."""
    names: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    norms = filter(is_norm, model.modules())
    of_norms = {parameter for norm in norms for parameter in norm.parameters(recurse=False)}
    return [_Named(tensor, tuple(of_tensor), tensor in of_norms) for tensor, of_tensor in names.items()]


def _split(config: GroupedOptimizer, model: nn.Module) -> list[tuple[OptimizerConfig, list[Tensor]]]:
    """Return the parameters without a group, then those of each group, with their options."""
    every = _list_parameters(model)
    frozen = freeze_parameters(model, config.freeze)
    trained = [parameter for parameter in every if id(parameter.tensor) not in frozen]
    members: list[list[Tensor]] = [[] for _ in config.groups]
    rest: list[Tensor] = []
    for parameter in trained:
        chosen = (n for n, group in enumerate(config.groups) if any(map(parameter.is_matched, group.match)))
        number = next(chosen, None)
        (rest if number is None else members[number]).append(parameter.tensor)
    for number, (group, tensors) in enumerate(zip(config.groups, members, strict=True)):
        where = f"build_learner.parameter_groups.{number}.match"
        for pattern in group.match:
            _check_match(pattern, every, where)
        if not tensors:
            raise BuilderError(
                f"{where}: all parameters that {list(group.match)} match are frozen or in "
                "earlier groups. Remove the group, or move it up"
            )
    configs = [group.choose_config(config.config) for group in config.groups]
    return [(config.config, rest), *zip(configs, members, strict=True)]


def _check_match(pattern: str, parameters: Sequence[_Named], where: str) -> None:
    if any(parameter.is_matched(pattern) for parameter in parameters):
        return
    names = [name for parameter in parameters for name in parameter.names]
    plain = re.sub(r"[\\^$]", "", pattern)
    close = get_close_matches(plain, [*names, *{name.rpartition(".")[0] for name in names}], n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise BuilderError(
        f"{where}: the name of no parameter matches {pattern!r}.{hint} "
        f"Names: {join_names(names, MAX_LISTED_NAMES)}"
    )
