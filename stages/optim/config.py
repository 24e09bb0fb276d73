"""Configuration of optimizers with Burn's defaults, of clipping, of non-finite numbers and of averages.

Norms are L2.
"""

from collections.abc import Iterable, Mapping
from operator import not_
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from stages.contracts.config import Config, Use, arguments_beside, select_by_kind
from stages.contracts.errors import ParamsError, closest
from stages.contracts.fields import (
    OPTIONAL,
    Coefficients,
    Count,
    Decay,
    Flag,
    NonNegative,
    Patterns,
    Positive,
    integer,
)
from stages.contracts.plugins import name_validator
from stages.contracts.validation import describe_errors
from stages.optim.schedules import OurSchedule

OUR_KINDS = ("adam", "adamw", "sgd", "rmsprop", "adagrad", "adan", "lion", "lamb", "muon", "lbfgs")
"""The optimizers with Burn's formulas and defaults."""
BUILT_IN = {
    **dict.fromkeys(OUR_KINDS, "stages.optim.optimizers:build_optimizer"),
    "adadelta": "torch.optim:Adadelta",
    "adafactor": "torch.optim:Adafactor",
    "adamax": "torch.optim:Adamax",
    "asgd": "torch.optim:ASGD",
    "nadam": "torch.optim:NAdam",
    "radam": "torch.optim:RAdam",
    "rprop": "torch.optim:Rprop",
    "sparse_adam": "torch.optim:SparseAdam",
}


class ClipByValue(Config):
    """Clamp each element to ±``value``. Burn's ``Value``."""

    kind: Literal["value"] = "value"
    value: Positive


class ClipByNorm(Config):
    """Limit the norm of each parameter's gradient to ``max_norm``. Burn's ``Norm``."""

    kind: Literal["norm"] = "norm"
    max_norm: Positive


class ClipByGlobalNorm(Config):
    """Limit the joint norm of all gradients to ``max_norm``; keep their direction. Pascanu et al., 2013."""

    kind: Literal["global_norm"] = "global_norm"
    max_norm: Positive


Clipping = Annotated[ClipByValue | ClipByNorm | ClipByGlobalNorm, Field(discriminator="kind")]


class NonFinite(Config):
    """The rule for a loss or gradient that is not finite. In Burn, such numbers reach the weights."""

    kind: Literal["stop", "skip"] = "stop"
    """``stop``: end the run. ``skip``: leave the batch out."""
    limit: Count = 10
    """Number of consecutive batches that ``skip`` may leave out; one more ends the run."""


class Ema(Config):
    """An exponential moving average, updated after each step of the optimizer from ``start_epoch`` on.

    ``average = decay average + (1 - decay) weights``; the first average is the weights after the first step.
    """

    kind: Literal["ema"] = "ema"
    decay: Decay = 0.999
    start_epoch: Count = 1


class Swa(Config):
    """The mean of the weights at the ends of the epochs from ``start_epoch`` on. Izmailov et al., 2018."""

    kind: Literal["swa"] = "swa"
    start_epoch: Count


Averaging = Annotated[Ema | Swa, Field(discriminator="kind")]


class Optimizer(Config):
    """Options of every optimizer."""

    learning_rate: Positive
    """Learning rate before any schedule. Unlike in Burn, it may be larger than 1."""
    clipping: Clipping | None = None
    """Limit of the gradients; null for no limit."""


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
    """Adam with ``weight_decay`` decoupled from the gradient. Loshchilov and Hutter, 2019."""

    kind: Literal["adamw"] = "adamw"
    learning_rate: Positive = 1e-4
    beta_1: Decay = 0.9
    beta_2: Decay = 0.999
    epsilon: Positive = 1e-5
    amsgrad: Flag = False
    """Divide by the largest second moment so far. Reddi et al., 2018."""
    weight_decay: NonNegative = 1e-4
    cautious_weight_decay: Flag = False
    """Decay the elements only whose sign is that of the mean gradient. Chen et al., 2025."""


class Sgd(Optimizer):
    """Stochastic gradient descent; ``weight_decay`` is added to the gradient."""

    kind: Literal["sgd"] = "sgd"
    learning_rate: Positive = 1e-2
    momentum: Decay | None = None
    """Fraction of the velocity that is kept. Null: no velocity."""
    dampening: Decay = 0.1
    """Fraction of each gradient after the first that is not added to the velocity. Needs momentum."""
    nesterov: Flag = False
    """Use Nesterov momentum. Requires momentum."""
    weight_decay: NonNegative = 0.0

    @model_validator(mode="after")
    def _check_nesterov(self) -> "Sgd":
        if self.nesterov and not self.momentum:
            raise ValueError(
                f"nesterov with momentum {self.momentum} requires a momentum above 0. Set, for example, "
                "momentum: 0.9"
            )
        return self


class RmsProp(Optimizer):
    """RMSprop, which divides by the root of a running mean of squares. Hinton, 2012.

    ``weight_decay`` is added to the gradient.
    """

    kind: Literal["rmsprop"] = "rmsprop"
    learning_rate: Positive = 1e-2
    alpha: Decay = 0.99
    """Fraction of the running mean that is kept."""
    momentum: Decay = 0.9
    epsilon: Positive = 1e-5
    centered: Flag = False
    """Subtract the square of the running mean first, which divides by a standard deviation."""
    weight_decay: NonNegative = 0.0


class AdaGrad(Optimizer):
    """AdaGrad, which divides by the root of the sum of squares. Duchi et al., 2011.

    ``weight_decay`` is added to the gradient.
    """

    kind: Literal["adagrad"] = "adagrad"
    learning_rate: Positive = 1e-2
    lr_decay: NonNegative = 0.0
    """The learning rate of step t, counted from 1, is divided by ``1 + (t - 1) lr_decay``."""
    epsilon: Positive = 1e-5
    weight_decay: NonNegative = 0.0


class Adan(Optimizer):
    """Adan, with a momentum of the difference of gradients. Xie et al., 2022."""

    kind: Literal["adan"] = "adan"
    learning_rate: Positive = 1e-3
    beta_1: Decay = 0.98
    beta_2: Decay = 0.92
    beta_3: Decay = 0.99
    epsilon: Positive = 1e-8
    no_prox: Flag = False
    """Decay the weights before the update instead of after it."""
    weight_decay: NonNegative = 0.0


class Lion(Optimizer):
    """Lion, whose update is the sign of a momentum; ``weight_decay`` is decoupled. Chen et al., 2023."""

    kind: Literal["lion"] = "lion"
    learning_rate: Positive = 1e-4
    beta_1: Decay = 0.9
    """Fraction of the momentum in the update."""
    beta_2: Decay = 0.99
    """Fraction of the momentum that is kept."""
    weight_decay: NonNegative = 0.0


class Lamb(Optimizer):
    """LAMB: Adam whose update has the norm of its parameter. You et al., 2019."""

    kind: Literal["lamb"] = "lamb"
    learning_rate: Positive = 1e-3
    beta_1: Decay = 0.9
    beta_2: Decay = 0.999
    epsilon: Positive = 1e-6
    use_trust_ratio: Flag = True
    """Scale the update to the norm of its parameter."""
    weight_decay: NonNegative = 0.0


QUINTIC = (3.4445, -4.775, 2.0315)
"""The coefficients with which Newton-Schulz iterations of Muon start to converge fastest. Jordan, 2024."""


class Muon(Optimizer):
    """Orthogonal updates for matrices; `AdamW` for parameters of any other rank. Jordan et al., 2024.

    Burn's Muon panics if a parameter is not a matrix.
    """

    kind: Literal["muon"] = "muon"
    learning_rate: Positive = 1e-3
    momentum: Decay = 0.95
    dampening: Decay = Field(default=0.0, exclude_if=not_)
    """Fraction of each gradient after the first that is not added to the velocity."""
    nesterov: Flag = True
    ns_steps: Annotated[int, integer(1, 99)] = 5
    """Number of Newton-Schulz iterations, which make the update approximately orthogonal."""
    ns_coefficients: Coefficients = Field(default=QUINTIC, exclude_if=QUINTIC.__eq__)
    """Coefficients of an iteration, of the powers 1, 3 and 5."""
    epsilon: Positive = 1e-7
    adjust_lr: Literal["original", "match_rms_adamw"] = "original"
    """Factor of the learning rate for a matrix of shape (A, B): √max(1, A/B), or 0.2 √max(A, B), for which
    learning rates and weight decays of AdamW are suitable. As in Burn, a linear layer is (in, out)."""
    weight_decay: NonNegative = 0.0
    others: AdamW = AdamW()
    """Optimizer of all other parameters; its rate keeps its ratio to ``learning_rate``."""

    @model_validator(mode="after")
    def _check_clipping(self) -> "Muon":
        if self.others.clipping is not None:
            raise ValueError(
                "others.clipping is set, but muon clips all gradients. Set muon's clipping instead"
            )
        return self


class Lbfgs(Optimizer):
    """Limited-memory BFGS, which evaluates each batch several times. Nocedal, 1980."""

    kind: Literal["lbfgs"] = "lbfgs"
    learning_rate: Positive = 1.0
    max_iter: Count = 20
    """Maximum number of iterations per step."""
    max_eval: Count | None = None
    """Maximum number of evaluations per step. Null: 5/4 of ``max_iter``."""
    history_size: Count = 100
    tolerance_grad: Positive = 1e-7
    """A step ends if no element of the gradient is larger."""
    tolerance_change: Positive = 1e-9
    """A step ends if the loss and the parameters change by no more than this."""
    line_search: Literal["strong_wolfe"] | None = None
    """Null: each iteration uses the learning rate as its step size."""


class OptimizerUse(Use):
    """An optimizer of `torch.optim` or of your own, with the formula and the defaults of its class.

    Every key except ``kind``, ``learning_rate`` and ``clipping`` is an argument of the class.
    """

    learning_rate: Positive | None = None
    """The argument ``lr``; null: the default of the class."""
    clipping: Clipping | None = None
    """Limit of the gradients, as for every optimizer; null for no limit."""

    @model_validator(mode="after")
    def _check_rate(self) -> "OptimizerUse":
        if "lr" in (self.model_extra or {}):
            raise ValueError("lr: unknown key. Set learning_rate instead")
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the class, except for ``lr``; null is not passed."""
        return arguments_beside(self)


OptimizerConfig = Annotated[
    Adam
    | AdamW
    | Sgd
    | RmsProp
    | AdaGrad
    | Adan
    | Lion
    | Lamb
    | Muon
    | Lbfgs
    | Annotated[OptimizerUse, AfterValidator(name_validator("optimizer", BUILT_IN))],
    select_by_kind(OUR_KINDS),
]


BIASES_AND_NORMS = "biases_and_norms"
"""A pattern for parameters of at most one dimension, and those whose name ends in ``bias``."""
NOT_PER_GROUP = ("kind", "clipping", "others")
"""Options of an optimizer that a group of parameters cannot have."""


class ParameterGroup(BaseModel):
    """Options of the optimizer, or another optimizer, for the parameters that a pattern matches.

    Every key except ``match``, ``optimizer`` and ``schedule`` is an option of the optimizer, such as
    ``learning_rate`` or ``weight_decay``.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    match: Annotated[
        Patterns,
        Field(min_length=1),
        BeforeValidator(lambda match: [match] if isinstance(match, str) else match),
    ]
    """Regular expressions, each searched for in the names of the parameters; ``biases_and_norms`` matches
    parameters of at most one dimension, and those whose name ends in ``bias``."""

    optimizer: OptimizerConfig | None = OPTIONAL
    """The optimizer of the group, which then has no options besides; null: that of the other parameters."""

    schedule: OurSchedule | None = OPTIONAL
    """The schedule of the group, which starts at its learning rate; null: that of the other parameters,
    scaled to that rate."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the group."""
        return dict(self.model_extra or {})

    def choose_config(self, config: OptimizerConfig) -> OptimizerConfig:
        """Return the config for the parameters of the group if that of the others is *config*.

        Raises `ParamsError` for options that it cannot have.
        """
        if self.optimizer is None:
            return with_options(config, self.options)
        for one in (config, self.optimizer):
            if isinstance(one, Lbfgs):
                raise ParamsError("lbfgs cannot be combined with another optimizer. Remove the group")
        if self.options or self.optimizer.clipping is not None:
            raise ParamsError(
                "a group with an optimizer has its options there, and the clipping of all gradients is that "
                f"of build_learner.optimizer. Move or remove {', '.join([*self.options] or ['clipping'])}"
            )
        return self.optimizer


def with_options(config: OptimizerConfig, options: Mapping[str, Any]) -> OptimizerConfig:
    """Return *config* with the *options* of a group of parameters.

    Those of `Muon` also apply to its ``others``. Raises `ParamsError` for an option that *config* lacks, for
    a wrong value, and for `Lbfgs`, which has no groups.
    """
    if isinstance(config, Lbfgs):
        raise ParamsError("lbfgs has no groups of parameters. Use another optimizer, or remove the groups")
    if isinstance(config, OptimizerUse):
        named: OptimizerConfig = _replace(config, options)
        return named
    others = set(AdamW.model_fields) if isinstance(config, Muon) else set()
    allowed = sorted({*type(config).model_fields, *others} - {*NOT_PER_GROUP})
    if unknown := [name for name in options if name not in allowed]:
        raise ParamsError(
            f"{config.kind} has no option {unknown[0]!r} for a group.{closest(unknown[0], allowed)} "
            f"Known: {', '.join(allowed)}"
        )
    if isinstance(config, Muon):
        others_changes = {name: value for name, value in options.items() if name in others}
        config = config.model_copy(update={"others": _replace(config.others, others_changes)})
    own_options = {name: value for name, value in options.items() if name in type(config).model_fields}
    changed: OptimizerConfig = _replace(config, own_options)
    return changed


def check_groups(config: OptimizerConfig, groups: Iterable[ParameterGroup]) -> None:
    """Raise `ParamsError` if *config* does not accept the options of one of *groups*."""
    for number, group in enumerate(groups):
        try:
            group.choose_config(config)
        except ParamsError as error:
            raise ParamsError(f"parameter_groups.{number}: {error}") from error


def _replace(config: Any, options: Mapping[str, Any]) -> Any:
    kind = type(config)
    try:
        return kind.model_validate({**config.model_dump(), **options})
    except ValidationError as error:
        raise ParamsError("; ".join(describe_errors(error, kind))) from error
