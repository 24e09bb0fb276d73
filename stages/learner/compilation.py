"""Models that `torch.compile` wrapped, compiled in place instead.

``torch.compile(model)`` returns a wrapper. Its ``train_step`` is that of the model inside, which calls the
model uncompiled, and its parameters have other names. `nn.Module.compile` has neither effect: the model
stays what it is, and ``self(inputs)`` is compiled. Here the wrapper's compiler is applied in that way.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from stages.contracts.errors import BuilderError

log = logging.getLogger(__name__)

Compiler = Callable[[Any], Any]
"""The compiler of a wrapper: takes a function, returns it compiled."""
MODEL, COMPILER, COMPILED_CALL = "_orig_mod", "dynamo_ctx", "_compiled_call_impl"
"""Private names of torch: a wrapper's model, its compiler, and the call that `nn.Module.compile` sets."""


def unwrap_compiled(model: Any) -> tuple[Any, dict[str, Compiler]]:
    """Return *model* without wrappers of `torch.compile`, and their compilers by the name of the module.

    A wrapper inside *model* is replaced there by the module that it wraps. Raises `BuilderError` if the
    installed torch wraps modules in a way that is not known here.
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
    if compilers or _compiled_modules(model):
        raise BuilderError(
            f"gradient_checkpointing() cannot be combined with torch.compile, and {type(model).__name__} is "
            "compiled: leave one of them out"
        )


def warn_of_ineffective_compile(model: nn.Module, devices: int) -> None:
    """Warn of modules of *model* for which `nn.Module.compile` has no effect, or only on one of *devices*."""
    for module in _compiled_modules(model):
        name = type(module).__name__
        if _is_of_torch(module.forward):
            log.warning(
                "%s.compile() compiles nothing, because its forward is that of torch: pass "
                "torch.compile(model) to build instead",
                name,
            )
        elif devices > 1:
            log.warning(
                "%s.compile() compiles the model on the first of %d devices only: pass "
                "torch.compile(model) to build instead",
                name,
                devices,
            )


def _compiled_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules of *model* that `nn.Module.compile` compiled."""
    return [module for module in model.modules() if getattr(module, COMPILED_CALL, None) is not None]


def _is_of_torch(function: Any) -> bool:
    """Return whether *function* is defined in torch, whose functions the compiler skips."""
    return str(getattr(function, "__module__", "")).startswith("torch.")


def _call_of(module: nn.Module) -> Callable[..., Any]:
    """Return what *module* does when called, as a function that the compiler accepts.

    The compiler starts at no function of torch itself, such as `nn.Sequential.forward`.
    """
    call: Callable[..., Any] = module._call_impl  # noqa: SLF001  what nn.Module.compile passes to the compiler

    def inlined(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return inlined if _is_of_torch(module.forward) else call


def _is_wrapper(module: Any) -> bool:
    kind = type(module)
    return kind.__name__ == "OptimizedModule" and kind.__module__.startswith("torch._dynamo")


def _parts(wrapper: Any) -> tuple[Any, Compiler]:
    """Return the module that *wrapper* holds and its compiler."""
    held = vars(wrapper).get("_modules", {})
    module, compiler = held.get(MODEL), vars(wrapper).get(COMPILER)
    if not (isinstance(module, nn.Module) and callable(compiler) and hasattr(module, COMPILED_CALL)):
        raise BuilderError(
            "this version of torch wraps compiled modules in an unknown way: call model.compile() and pass "
            "the model itself to build"
        )
    return module, compiler


def apply_gradient_checkpointing(model: nn.Module) -> None:
    """Have each child of *model* keep its input only. Costs a second forward pass; changes no number.

    The random state is set back for the second pass, so dropout drops the same, and what that pass does to
    buffers (running statistics) is undone. Of a list or dict of modules, it is the modules in it.
    """
    for child in model.children():
        if type(child).forward is nn.Module.forward:  # a container that nobody calls
            apply_gradient_checkpointing(child)
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
