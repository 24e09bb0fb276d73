"""From a config to torch's optimizer."""

from collections.abc import Iterable

import torch
from torch import Tensor

from stages.optim.config import Adam, AdamW, Sgd


def build_optimizer(config: Adam | AdamW | Sgd, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """The torch optimizer of *parameters*, in its fused form: one call a step for all of them."""
    match config:
        case Adam():
            return torch.optim.Adam(
                parameters,
                lr=config.learning_rate,
                betas=(config.beta_1, config.beta_2),
                eps=config.epsilon,
                weight_decay=config.weight_decay,
                fused=True,
            )
        case AdamW():
            return torch.optim.AdamW(
                parameters,
                lr=config.learning_rate,
                betas=(config.beta_1, config.beta_2),
                eps=config.epsilon,
                weight_decay=config.weight_decay,
                fused=True,
            )
        case Sgd():
            return torch.optim.SGD(
                parameters,
                lr=config.learning_rate,
                momentum=config.momentum,
                dampening=config.dampening,
                nesterov=config.nesterov,
                weight_decay=config.weight_decay,
                fused=True,
            )
