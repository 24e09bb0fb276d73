"""Gradient checkpointing: activations are computed again in the backward pass instead of being kept."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_activations(model: nn.Module) -> None:
    """Have each child of *model* keep its input only. Costs a second forward pass; changes no number.

    The random state is set back for the second pass, so dropout drops the same, and what that pass does to
    buffers (running statistics) is undone. Of a list or dict of modules, it is the modules in it.
    """
    for child in model.children():
        if type(child).forward is nn.Module.forward:  # a container that nobody calls
            recompute_activations(child)
        elif any(True for _ in child.parameters()):
            child.forward = partial(
                checkpoint, child.forward, use_reentrant=False, context_fn=partial(_contexts, child)
            )


def _contexts(module: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """What surrounds the first pass through *module*, and the second."""
    return nullcontext(), _scratch_buffers(module)


@contextmanager
def _scratch_buffers(module: nn.Module) -> Iterator[None]:
    """Inside, *module* has copies of its buffers; afterwards it has its own again, untouched."""
    kept = [(each, dict(each._buffers)) for each in module.modules()]  # noqa: SLF001  no public way to swap
    for each, buffers in kept:
        each._buffers.update({name: b.clone() for name, b in buffers.items() if b is not None})  # noqa: SLF001
    try:
        yield
    finally:
        for each, buffers in kept:
            each._buffers.update(buffers)  # noqa: SLF001
