"""Optimizers, as params say them, with Burn's defaults."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.contracts.config import Config
from stages.contracts.fields import Count, Decay, Flag, NonNegative, Positive, integer
from stages.optim.clipping import Clipping


class Optimizer(Config):
    """What every optimizer has."""

    learning_rate: Positive
    """Before any schedule. Burn refuses more than 1; here only the optimizer's own sense does."""
    clipping: Clipping | None = None
    """Limit of the gradients; null sets none. Arguments and defaults:

    * ``value``: ``value``
    * ``norm``: ``max_norm``
    * ``global_norm``: ``max_norm``
    """


class Adam(Optimizer):
    """Adam; ``weight_decay`` is added to the gradient. Kingma and Ba, 2015."""

    kind: Literal["adam"] = "adam"
    learning_rate: Positive = 1e-4
    beta_1: Decay = 0.9
    beta_2: Decay = 0.999
    epsilon: Positive = 1e-5
    amsgrad: Flag = False
    """Divide by the largest second moment so far. Reddi et al., 2018."""
    weight_decay: NonNegative = 0.0


class AdamW(Optimizer):
    """Adam with ``weight_decay`` apart from the gradient. Loshchilov and Hutter, 2019."""

    kind: Literal["adamw"] = "adamw"
    learning_rate: Positive = 1e-4
    beta_1: Decay = 0.9
    beta_2: Decay = 0.999
    epsilon: Positive = 1e-5
    amsgrad: Flag = False
    """Divide by the largest second moment so far. Reddi et al., 2018."""
    weight_decay: NonNegative = 1e-4


class Sgd(Optimizer):
    """Stochastic gradient descent; ``weight_decay`` is added to the gradient."""

    kind: Literal["sgd"] = "sgd"
    learning_rate: Positive = 1e-2
    momentum: Decay | None = None
    """How much of the velocity stays. Null: there is none."""
    dampening: Decay = 0.1
    """How much of each gradient but the first is kept out of the velocity. Only with momentum."""
    nesterov: Flag = False
    """Look ahead by one velocity. Only with momentum, and with ``dampening: 0``."""
    weight_decay: NonNegative = 0.0

    @model_validator(mode="after")
    def _check_nesterov(self) -> "Sgd":
        if self.nesterov and (not self.momentum or self.dampening):
            raise ValueError(
                f"nesterov with momentum {self.momentum} and dampening {self.dampening}: torch asks for a "
                "momentum and no dampening, as in momentum: 0.9, dampening: 0"
            )
        return self


class RmsProp(Optimizer):
    """Divides by the root of a running mean of squares. Hinton, 2012.

    ``weight_decay`` is added to the gradient.
    """

    kind: Literal["rmsprop"] = "rmsprop"
    learning_rate: Positive = 1e-2
    alpha: Decay = 0.99
    """How much of the running mean stays."""
    momentum: Decay = 0.9
    epsilon: Positive = 1e-5
    centered: Flag = False
    """Take the running mean's square off first: divide by a standard deviation."""
    weight_decay: NonNegative = 0.0


class AdaGrad(Optimizer):
    """Divides by the root of the sum of squares. Duchi et al., 2011.

    ``weight_decay`` is added to the gradient.
    """

    kind: Literal["adagrad"] = "adagrad"
    learning_rate: Positive = 1e-2
    lr_decay: NonNegative = 0.0
    """The rate of step t, from 1, is divided by ``1 + (t - 1) lr_decay``."""
    epsilon: Positive = 1e-5
    weight_decay: NonNegative = 0.0


class Muon(Optimizer):
    """Orthogonal updates for matrices; `AdamW` for parameters of any other rank. Jordan et al., 2024.

    Burn's stops with a panic at a parameter that is no matrix.
    """

    kind: Literal["muon"] = "muon"
    learning_rate: Positive = 1e-3
    momentum: Decay = 0.95
    nesterov: Flag = True
    ns_steps: Annotated[int, integer(1, 99)] = 5
    """Newton-Schulz iterations, each of which brings the update nearer to an orthogonal matrix."""
    epsilon: Positive = 1e-7
    adjust_lr: Literal["original", "match_rms_adamw"] = "original"
    """How the rate grows with a matrix's shape (A, B): by √max(1, A/B), or by 0.2 √max(A, B), with which
    rates and weight decays found for AdamW fit."""
    weight_decay: NonNegative = 0.0
    others: AdamW = AdamW()
    """For vectors, convolution kernels and so on; its rate keeps its proportion to ``learning_rate``."""

    @model_validator(mode="after")
    def _check_clipping(self) -> "Muon":
        if self.others.clipping is not None:
            raise ValueError("others has a clipping of its own: clip all gradients with muon's clipping")
        return self


class Lbfgs(Optimizer):
    """Limited-memory BFGS, which evaluates each batch several times. Nocedal, 1980."""

    kind: Literal["lbfgs"] = "lbfgs"
    learning_rate: Positive = 1.0
    max_iter: Count = 20
    """Iterations a step."""
    max_eval: Count | None = None
    """Evaluations a step. Null: 5/4 of ``max_iter``."""
    history_size: Count = 100
    tolerance_grad: Positive = 1e-7
    """A step ends where no element of the gradient is larger."""
    tolerance_change: Positive = 1e-9
    """A step ends where loss and parameters change by no more."""
    line_search: Literal["strong_wolfe"] | None = None
    """Null: each iteration goes as far as the rate says."""


OptimizerConfig = Annotated[
    Adam | AdamW | Sgd | RmsProp | AdaGrad | Muon | Lbfgs, Field(discriminator="kind")
]
