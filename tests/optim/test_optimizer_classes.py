"""Optimizers that params name: their arguments, their defaults, and the messages for mistakes."""

import pytest
import torch

from stages.contracts.errors import PluginError
from stages.optim import ClipByNorm, OptimizerUse, build_optimizer, check_class, learning_rate_of
from stages.optim.config import BUILT_IN, OUR_KINDS


class Lion(torch.optim.Optimizer):
    """An optimizer of a user, without a default learning rate."""

    def __init__(self, params, lr, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})


def no_optimizer(params, lr=0.1):
    return list(params)


def parameters():
    return [torch.nn.Parameter(torch.ones(2, 2))]


MISTAKES = {
    "unknown argument": (
        {"kind": "adadelta", "roh": 0.9},
        r"'adadelta' cannot be built: unknown argument 'roh'\. Did you mean 'rho'\?\n  accepted: rho=0\.9",
    ),
    "value out of bounds": (
        {"kind": "torch.optim:NAdam", "momentum_decay": -1},
        "'torch.optim:NAdam' cannot be built: ValueError: Invalid momentum_decay value: -1",
    ),
    "value of another type": ({"kind": "radam", "betas": 5}, "optimizer 'radam' cannot be built: TypeError"),
    "no default rate": ({"kind": f"{__name__}:Lion"}, "no default learning rate. Set learning_rate in"),
    "unknown class": ({"kind": "torch.optim:Adan"}, "has no 'Adan'. Did you mean 'Adam'?"),
}


@pytest.mark.parametrize(("use", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_reported_without_training(use, message):
    with pytest.raises(PluginError, match=message):
        check_class(OptimizerUse.model_validate(use))


def test_result_that_is_no_optimizer_is_refused():
    with pytest.raises(PluginError, match="is a list, which is not a torch.optim.Optimizer"):
        build_optimizer(OptimizerUse(kind=f"{__name__}:no_optimizer"), parameters())


def test_learning_rate_is_the_argument_lr_and_the_default_is_that_of_the_class():
    use = OptimizerUse(kind=f"{__name__}:Lion", learning_rate=0.5, beta=0.8)

    assert build_optimizer(use, parameters()).defaults == {"lr": 0.5, "beta": 0.8}
    assert learning_rate_of(OptimizerUse(kind="adadelta")) == 1.0


def test_clipping_and_null_are_no_arguments_of_the_class():
    use = OptimizerUse(kind="nadam", clipping=ClipByNorm(max_norm=1), foreach=None)

    assert use.arguments == {}
    assert type(build_optimizer(use, parameters())) is torch.optim.NAdam


def test_argument_lr_is_refused_in_favour_of_learning_rate():
    with pytest.raises(ValueError, match="Set learning_rate instead"):
        OptimizerUse(kind="nadam", lr=0.1)


def test_each_optimizer_of_torch_has_a_name():
    classes = {
        name.lower()
        for name, each in vars(torch.optim).items()
        if isinstance(each, type) and issubclass(each, torch.optim.Optimizer)
    }

    named = {kind.replace("_", "") for kind in {*BUILT_IN, *OUR_KINDS} - {"adan", "lion", "lamb"}}
    assert named == classes - {"optimizer"}
