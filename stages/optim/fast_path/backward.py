"""The direct call of PyTorch's autograd engine, with the same bits as ``loss.backward()``."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import Variable

from stages.contracts.fields import FastPath
from stages.optim.fast_path.patches import check


def choose_backward(fast_path: FastPath) -> Callable[[Tensor], None]:
    """Return what adds the gradients of a loss, a tensor of one element, to ``.grad`` of its parameters.

    Raises `StageError` if the installed PyTorch has another engine than expected.
    """
    if fast_path == "off":
        return Tensor.backward
    check()
    return run_backward


def run_backward(loss: Tensor) -> None:
    """Do what ``loss.backward()`` does, without the parsing of its arguments, which takes 15 µs."""
    if type(loss) is not Tensor or not loss.is_floating_point():
        loss.backward()  # type: ignore[no-untyped-call]
        return
    gradient = torch.ones_like(loss, memory_format=torch.preserve_format)
    engine = Variable._execution_engine  # noqa: SLF001  no public name
    keep_graph = create_graph = False
    engine.run_backward(
        (loss,), (gradient,), keep_graph, create_graph, (), allow_unreachable=True, accumulate_grad=True
    )
