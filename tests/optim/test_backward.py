"""The direct call of the autograd engine computes what ``loss.backward()`` computes."""

import pytest
import torch
from torch import Tensor, nn

from stages.optim.mixed_precision import choose_backward, run_backward

LOSSES = {
    "scalar": lambda weight: weight.square().sum(),
    "one element": lambda weight: weight.square().sum(0, keepdim=True),
    "a view": lambda weight: weight[:1].view(()),
    "a parameter": lambda weight: nn.Parameter(weight.detach()[0].clone()),
    "used twice": lambda weight: (weight.exp() * weight).mean() + weight[1],
    "hooked": lambda weight: _with_hook(weight.square().sum()),
}


def _with_hook(loss):
    loss.register_hook(lambda gradient: gradient.mul_(3.0))
    return loss


def gradients_of(name, dtype, backward):
    weight = torch.linspace(-1.0, 2.0, 7).to(dtype).requires_grad_()
    loss = LOSSES[name](weight)
    backward(loss)
    return weight.grad if weight.grad is not None else loss.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_direct_call_gives_the_bits_of_loss_backward(name, dtype):
    for _ in range(2):  # neither a hook nor a change of the first gradients must change the second ones
        found = gradients_of(name, dtype, run_backward)

        assert torch.equal(found, gradients_of(name, dtype, Tensor.backward))
        found.mul_(5.0)


@pytest.mark.parametrize("backward", [run_backward, Tensor.backward])
def test_error_is_that_of_loss_backward(backward):
    with pytest.raises(RuntimeError, match="only for real scalar outputs"):
        backward(torch.ones((), dtype=torch.complex64, requires_grad=True) * 2)


def test_tensor_subclass_computes_its_own_backward_pass():
    calls = []

    class Recording(Tensor):
        def backward(self):
            calls.append(self)

    run_backward(torch.ones((), requires_grad=True).as_subclass(Recording))

    assert len(calls) == 1


def test_switch_selects_the_direct_call():
    assert choose_backward("auto") is run_backward
    assert choose_backward("off") is Tensor.backward
