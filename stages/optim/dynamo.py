"""Optimizers made, saved and loaded without importing torch's compiler, which takes a second."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer

MARK = "__dynamo_disable"


@contextmanager
def without_dynamo() -> Iterator[None]:
    """Inside, no optimizer's constructor, `state_dict` or `load_state_dict` imports the compiler.

    torch wraps these methods so that compiled code does not look into them, and the wrapper imports
    ``torch._dynamo`` at the first call to ask for that, compiled code or not. Here it finds its answer
    already there. Where torch wraps them otherwise, this changes nothing.
    """
    wrapped = [_wrapped(name) for name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad")]
    marked = [method for method in wrapped if method is not None and not hasattr(method, MARK)]
    for method in marked:
        setattr(method, MARK, method)
    try:
        yield
    finally:
        for method in marked:
            delattr(method, MARK)


def _wrapped(name: str) -> Any:
    return getattr(getattr(Optimizer, name), "__wrapped__", None)
