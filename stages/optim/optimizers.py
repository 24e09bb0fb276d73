"""PyTorch optimizers built from their configuration."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from stages.optim.config import AdaGrad, Adam, AdamW, Lbfgs, Muon, OptimizerConfig, OptimizerUse, RmsProp, Sgd
from stages.optim.fast_path.kernels import is_dense, is_skipped_by_sgd
from stages.optim.fast_path.patches import without_dynamo
from stages.optim.optimizer_classes import build_class, default_rate

FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")


def build_optimizer(config: OptimizerConfig, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Return the PyTorch optimizer of *parameters*, in its fused form if it is one of Burn's and has one.

    The optimizer does not clip: pass ``config.clipping`` to the `Stepper`.

    At the same settings, PyTorch differs from Burn as follows: the fused Adam corrects the bias in float64
    and in another order of operations (last digits); Muon averages the momentum instead of summing it, which
    the orthogonalization cancels, and iterates in bfloat16. The other optimizers differ by rounding only.
    """
    parameters = list(parameters)
    with without_dynamo():
        return _build(config, parameters)


def learning_rate_of(config: OptimizerConfig) -> float:
    """Return the learning rate of *config*, by default that of its class. Raises `PluginError`."""
    return default_rate(config) if isinstance(config, OptimizerUse) else config.learning_rate


def _build(config: OptimizerConfig, parameters: list[Tensor]) -> torch.optim.Optimizer:
    match config:
        case Adam() | AdamW():
            return _adam(config, parameters)
        case Sgd():
            return torch.optim.SGD(
                parameters,
                lr=config.learning_rate,
                momentum=config.momentum or 0.0,
                dampening=config.dampening if config.momentum else 0.0,
                nesterov=config.nesterov,
                weight_decay=config.weight_decay,
                fused=_can_be_fused(parameters) and not any(map(is_skipped_by_sgd, parameters)),
            )
        case RmsProp():
            return torch.optim.RMSprop(
                parameters,
                lr=config.learning_rate,
                alpha=config.alpha,
                momentum=config.momentum,
                eps=config.epsilon,
                centered=config.centered,
                weight_decay=config.weight_decay,
            )
        case AdaGrad():
            return torch.optim.Adagrad(
                parameters,
                lr=config.learning_rate,
                lr_decay=config.lr_decay,
                eps=config.epsilon,
                weight_decay=config.weight_decay,
            )
        case Muon():
            return MuonWithAdamW(
                parameters,
                lambda matrices: _muon(config, matrices),
                lambda others: _adam(config.others, others),
            )
        case Lbfgs():
            return _lbfgs(config, parameters)
        case OptimizerUse():
            return build_class(config, parameters)


def _adam(config: Adam | AdamW, parameters: list[Tensor]) -> torch.optim.Adam:
    kind = torch.optim.AdamW if isinstance(config, AdamW) else torch.optim.Adam
    return kind(
        parameters,
        lr=config.learning_rate,
        betas=(config.beta_1, config.beta_2),
        eps=config.epsilon,
        amsgrad=config.amsgrad,
        weight_decay=config.weight_decay,
        fused=_can_be_fused(parameters),
    )


def _muon(config: Muon, parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Muon(
        parameters,
        lr=config.learning_rate,
        momentum=config.momentum,
        nesterov=config.nesterov,
        ns_steps=config.ns_steps,
        eps=config.epsilon,
        adjust_lr_fn=config.adjust_lr,
        weight_decay=config.weight_decay,
    )


def _lbfgs(config: Lbfgs, parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(
        parameters,
        lr=config.learning_rate,
        max_iter=config.max_iter,
        max_eval=config.max_eval,
        history_size=config.history_size,
        tolerance_grad=config.tolerance_grad,
        tolerance_change=config.tolerance_change,
        line_search_fn=config.line_search,
    )


def _can_be_fused(parameters: list[Tensor]) -> bool:
    """Return whether PyTorch's fused optimizers accept *parameters*."""
    return all(
        parameter.is_floating_point() and parameter.device.type in FUSED_DEVICES and is_dense(parameter)
        for parameter in parameters
    )


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the matrices of a model and AdamW for all other parameters, as one optimizer.

    The two share one state and one list of groups; the group of the matrices is the first. *muon* and *adamw*
    build the PyTorch optimizers of the parameters that they receive.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        muon: Callable[[list[Tensor]], torch.optim.Optimizer],
        adamw: Callable[[list[Tensor]], torch.optim.Optimizer],
    ) -> None:
        parameters = list(parameters)
        matrices = [parameter for parameter in parameters if parameter.ndim == 2]
        others = [parameter for parameter in parameters if parameter.ndim != 2]
        self._parts: list[torch.optim.Optimizer] = [
            build(group) for build, group in ((muon, matrices), (adamw, others)) if group
        ]
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    def step(self, closure: Any = None) -> Any:
        """Step both optimizers, with the current groups and state of this one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state
            part.step()
        return loss
