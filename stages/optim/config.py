"""Optimizers, as params say them, with Burn's defaults."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from stages.contracts.config import Config

Decay = Annotated[float, Field(ge=0, lt=1)]


class Adam(Config):
    """Adam; ``weight_decay`` is added to the gradient. Kingma and Ba, 2015."""

    kind: Literal["adam"] = "adam"
    learning_rate: PositiveFloat = 1e-4
    """Before any schedule."""
    beta_1: Decay = 0.9
    beta_2: Decay = 0.999
    epsilon: PositiveFloat = 1e-5
    weight_decay: NonNegativeFloat = 0.0


class AdamW(Config):
    """Adam with ``weight_decay`` apart from the gradient. Loshchilov and Hutter, 2019."""

    kind: Literal["adamw"]
    learning_rate: PositiveFloat = 1e-4
    """Before any schedule."""
    beta_1: Decay = 0.9
    beta_2: Decay = 0.999
    epsilon: PositiveFloat = 1e-5
    weight_decay: NonNegativeFloat = 1e-4


class Sgd(Config):
    """Stochastic gradient descent; ``weight_decay`` is added to the gradient."""

    kind: Literal["sgd"]
    learning_rate: PositiveFloat = 1e-2
    """Before any schedule."""
    momentum: Decay = 0.0
    dampening: Decay = 0.0
    nesterov: bool = False
    weight_decay: NonNegativeFloat = 0.0


OptimizerConfig = Annotated[Adam | AdamW | Sgd, Field(discriminator="kind")]
