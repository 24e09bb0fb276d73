"""From a config to torch's optimizer."""

from collections.abc import Iterable

import torch
from torch import Tensor

from stages.optim.config import AdaGrad, Adam, AdamW, Lbfgs, Muon, RmsProp, Sgd
from stages.optim.dynamo import without_dynamo
from stages.optim.fused import is_dense, is_skipped_by_sgd
from stages.optim.muon import MuonWithAdamW

FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")


def build_optimizer(
    config: Adam | AdamW | Sgd | RmsProp | AdaGrad | Muon | Lbfgs, parameters: Iterable[Tensor]
) -> torch.optim.Optimizer:
    """The torch optimizer of *parameters*; in its fused form, one call a step for all, where there is one.

    Its clipping is not in it: hand ``config.clipping`` to the `Stepper`.

    Where torch computes otherwise than Burn, at the same settings: the fused Adam corrects for bias in
    float64 and in another order of operations (last digits); Muon averages momentum instead of summing,
    which the orthogonalisation undoes, and iterates in bfloat16. The others differ by rounding only.
    """
    parameters = list(parameters)
    with without_dynamo():
        return _build(config, parameters)


def _build(
    config: Adam | AdamW | Sgd | RmsProp | AdaGrad | Muon | Lbfgs, parameters: list[Tensor]
) -> torch.optim.Optimizer:
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
                parameters, lambda some: _muon(config, some), lambda some: _adam(config.others, some)
            )
        case Lbfgs():
            return _lbfgs(config, parameters)


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
    """Whether torch's fused forms take *parameters*; True at once for those of an ordinary model."""
    return all(
        parameter.is_floating_point() and parameter.device.type in FUSED_DEVICES and is_dense(parameter)
        for parameter in parameters
    )
