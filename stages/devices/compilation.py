"""Changes to a model before training: `torch.compile` in place, and gradient checkpointing.

``torch.compile(model)`` returns a wrapper. Its ``train_step`` is that of the model inside, which calls the
model uncompiled, and its parameters have other names. `nn.Module.compile` has neither effect: the model is
not wrapped, and ``self(inputs)`` is compiled. This module applies the compiler of a wrapper in the same way.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stages.contracts.errors import BuilderError
from stages.contracts.fields import COMPILE_MODES
from stages.contracts.history import Split
from stages.contracts.placement import list_parts

log = logging.getLogger(__name__)

Compiler = Callable[[Any], Any]
"""The compiler of a wrapper: takes a function and returns the compiled function."""
MODEL, COMPILER, COMPILED_CALL = "_orig_mod", "dynamo_ctx", "_compiled_call_impl"
"""Private names of torch: a wrapper's model, its compiler, and the call that `nn.Module.compile` sets."""


@dataclass(frozen=True)
class CompileOptions:
    """The arguments of `torch.compile`. Raises `BuilderError` for a mode that cannot be used."""

    mode: str = "default"
    backend: str | Callable[..., Any] = "inductor"

    def __post_init__(self) -> None:
        if self.mode not in COMPILE_MODES:
            raise BuilderError(f"compile({self.mode!r}): the mode must be one of {', '.join(COMPILE_MODES)}")

    def compiler(self) -> Compiler:
        """Return the function that compiles a call."""
        return partial(torch.compile, dynamic=False, mode=self.mode, backend=self.backend)


class CompiledShapes:
    """Runs compiled calls eagerly for batches of another shape than the first, so that each compiles once."""

    def __init__(self) -> None:
        self.first: dict[str, list[list[int]]] = {}
        """The shapes of the first batch of each split, which a checkpoint within an epoch has to hold."""

    def context(self, split: Split, batch: Any) -> AbstractContextManager[object]:
        """Return the context for a step on *batch* of *split*."""
        tensors = list_parts(batch, lambda part: isinstance(part, Tensor))
        shapes = [list(tensor.shape) for tensor in tensors]
        if shapes == self.first.setdefault(split.value, shapes):
            return nullcontext()
        context: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
        return context


def unwrap_compiled(model: Any) -> tuple[Any, dict[str, Compiler]]:
    """Return *model* without wrappers of `torch.compile`, and their compilers by the name of the module.

    A wrapper inside *model* is replaced by the module that it wraps. Raises `BuilderError` if the wrapper of
    the installed torch has an unknown structure.
    """
    compilers: dict[str, Compiler] = {}
    if _is_wrapper(model):
        model, compilers[""] = _parts(model)
    if not isinstance(model, nn.Module):
        return model, compilers
    for name, parent in list(model.named_modules()):
        for child, module in list(parent.named_children()):
            if _is_wrapper(module):
                path = f"{name}.{child}" if name else child
                path = path.replace(f"{MODEL}.", "")
                parent._modules[child], compilers[path] = _parts(module)  # noqa: SLF001  a name may hold dots
    return model, compilers


def compile_in_place(model: nn.Module, compilers: Mapping[str, Compiler]) -> None:
    """Compile the calls of the modules of *model* that *compilers* names, as `nn.Module.compile` does."""
    for name, compiler in compilers.items():
        module = model.get_submodule(name)
        setattr(module, COMPILED_CALL, compiler(_call_of(module)))


def check_gradient_checkpointing(model: nn.Module, compilers: Mapping[str, Compiler]) -> None:
    """Raise `BuilderError` if a module of *model* is compiled: torch cannot recompute its activations."""
    if compilers or _find_compiled(model):
        raise BuilderError(
            f"gradient_checkpointing() cannot be combined with torch.compile, and {type(model).__name__} is "
            "compiled: leave one of them out"
        )


def warn_of_ineffective_compile(model: nn.Module) -> None:
    """Log a warning if `nn.Module.compile` has no effect on a module."""
    for module in _find_compiled(model):
        if _is_of_torch(module.forward):
            log.warning(
                "%s.compile() has no effect, because its forward is defined in torch: pass "
                "torch.compile(model) to build instead",
                type(module).__name__,
            )


def _find_compiled(model: nn.Module) -> list[nn.Module]:
    """Return the modules of *model* that `nn.Module.compile` compiled."""
    return [module for module in model.modules() if module._compiled_call_impl is not None]  # noqa: SLF001


def _is_of_torch(function: Any) -> bool:
    """Return whether *function* is defined in torch, whose functions the compiler skips."""
    return str(getattr(function, "__module__", "")).startswith("torch.")


def _call_of(module: nn.Module) -> Callable[..., Any]:
    """Return the call of *module* as a function that the compiler accepts.

    The compiler skips functions of torch itself, such as `nn.Sequential.forward`.
    """
    call: Callable[..., Any] = module._call_impl  # noqa: SLF001  what nn.Module.compile passes to the compiler

    def call_module(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return call_module if _is_of_torch(module.forward) else call


def _is_wrapper(module: Any) -> bool:
    kind = type(module)
    return kind.__name__ == "OptimizedModule" and kind.__module__.startswith("torch._dynamo")


def _parts(wrapper: Any) -> tuple[Any, Compiler]:
    """Return the module that *wrapper* holds and its compiler."""
    module = wrapper._modules.get(MODEL)  # noqa: SLF001  no public way to read it
    compiler = vars(wrapper).get(COMPILER)
    if not (isinstance(module, nn.Module) and callable(compiler) and hasattr(module, COMPILED_CALL)):
        raise BuilderError(
            "the installed torch wraps compiled modules in an unknown way: call model.compile() and pass "
            "the model itself to build"
        )
    return module, compiler


def apply_gradient_checkpointing(model: nn.Module) -> None:
    """Have each child of *model* keep only its input, and recompute its activations in the backward pass.

    This saves memory, takes a second forward pass, and changes no number: the random state of the first pass
    is restored, so dropout drops the same values, and changes of buffers (running statistics) are undone. For
    a list or dict of modules, it applies to the modules in it.
    """
    for child in model.children():
        if type(child).forward is nn.Module.forward:  # a container, which is never called
            apply_gradient_checkpointing(child)
        elif list(child.parameters()):
            child.forward = partial(
                checkpoint, child.forward, use_reentrant=False, context_fn=partial(_contexts, child)
            )


def _contexts(module: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the first pass through *module* and of the second."""
    return nullcontext(), _scratch_buffers(module)


@contextmanager
def _scratch_buffers(module: nn.Module) -> Iterator[None]:
    """Replace the buffers of *module* by copies for the block."""
    buffers_of_parts = [(part, dict(part._buffers)) for part in module.modules()]  # noqa: SLF001  no public way to swap
    for part, buffers in buffers_of_parts:
        part._buffers.update({name: b.clone() for name, b in buffers.items() if b is not None})  # noqa: SLF001
    try:
        yield
    finally:
        for part, buffers in buffers_of_parts:
            part._buffers.update(buffers)  # noqa: SLF001
