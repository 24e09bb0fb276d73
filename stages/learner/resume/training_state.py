"""State that a model adds to the checkpoint, such as that of a second optimizer.

A model, or any module in it, defines two methods::

    class Gan(nn.Module):
        def training_state(self):
            return {"critic_optimizer": self.critic_optimizer.state_dict()}

        def load_training_state(self, state):
            self.critic_optimizer.load_state_dict(state["critic_optimizer"])

The state is made of the types that `stages.records.encode_state` supports: tensors, arrays, numbers, text,
None, and containers of these. It is stored in the trainer record, not in the record of the model.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from types import FunctionType, MethodType, ModuleType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from stages.contracts.errors import BuilderError
from stages.records import decode_state, encode_state

log = logging.getLogger(__name__)

SAVE, LOAD = "training_state", "load_training_state"
MODULE_PARTS = ("_modules", "_parameters")
"""Attributes of a module that have no optimizers."""
OPAQUE = (Tensor, nn.Module, type, ModuleType, FunctionType, MethodType, str, bytes)
MAX_DEPTH = 6
"""Attributes and containers between a module and an optimizer that `check_training_state` finds."""


def training_state(model: Any) -> dict[str, Any]:
    """Return the state that *model* and the modules in it add to a checkpoint, by the name of the module.

    Raises `RecordError` for a value that a checkpoint cannot hold.
    """
    return {
        name: encode_state(module.training_state(), f"{type(module).__name__}.{SAVE}()")
        for name, module in _modules_with(SAVE, model).items()
    }


def load_training_state(model: Any, saved: Mapping[str, Any]) -> None:
    """Load *saved*, which `training_state` returned, into *model* and the modules in it.

    The tensors are on the CPU. Log a warning for a module without saved state, and for saved state without a
    module.
    """
    modules = _modules_with(LOAD, model)
    for name, module in modules.items():
        if name in saved:
            module.load_training_state(decode_state(saved[name]))
        else:
            log.warning(
                "the checkpoint has no %s of %s, which keeps its initial state: the run will not equal an "
                "uninterrupted one",
                SAVE,
                type(module).__name__,
            )
    for name in saved.keys() - modules.keys():
        log.warning("the checkpoint has a %s of module %r, which does not define %s", SAVE, name, LOAD)


def check_training_state(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Log a warning for each further optimizer in *model*, whose state no checkpoint would store.

    Raises `BuilderError` for a module that defines only one of the two methods.
    """
    savers, loaders = _modules_with(SAVE, model), _modules_with(LOAD, model)
    for name, module in _modules(model):
        if (name in savers) != (name in loaders):
            raise BuilderError(
                f"{type(module).__name__} defines only one of {SAVE}() and {LOAD}(state): define both"
            )
        if not savers.keys() & {"", *accumulate(name.split("."), "{}.{}".format)}:
            _warn_of_optimizers(module, optimizer)


def _warn_of_optimizers(module: Any, optimizer: torch.optim.Optimizer) -> None:
    for path, other in _optimizers(module):
        if other is not optimizer:
            log.warning(
                "%s holds a torch.optim.%s in %r, whose state is not saved in checkpoints: a resumed run "
                "will not equal an uninterrupted one. Define %s() and %s(state) in the model",
                type(module).__name__,
                type(other).__name__,
                path,
                SAVE,
                LOAD,
            )


def _modules(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the module for *model* and, if it is an `nn.Module`, the modules in it."""
    if isinstance(model, nn.Module):
        yield from model.named_modules()
    else:
        yield "", model


def _modules_with(method: str, model: Any) -> dict[str, Any]:
    """Return the modules of *model* that define *method*, by name."""
    return {name: module for name, module in _modules(model) if hasattr(module, method)}


def _optimizers(module: Any) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    """Yield the path and the optimizer for each attribute of *module*, also in containers and objects."""
    seen: set[int] = set()
    pending = [(name, value) for name, value in vars(module).items() if name not in MODULE_PARTS]
    while pending:
        path, value = pending.pop(0)
        if id(value) in seen or path.count(".") >= MAX_DEPTH:
            continue
        seen.add(id(value))
        if isinstance(value, torch.optim.Optimizer):
            yield path, value
        elif not isinstance(value, OPAQUE):
            pending += [(f"{path}.{key}", part) for key, part in _parts(value)]


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, list | tuple | set | frozenset):
        return enumerate(value)
    return (value if isinstance(value, Mapping) else attributes_of(value)).items()


def attributes_of(value: object) -> dict[str, Any]:
    """Return the attributes of *value* itself, none of its class; an empty dict for one without them."""
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    return attributes


@runtime_checkable
class Stateful(Protocol):
    """An object with a state dict, such as an optimizer or a learning rate scheduler of PyTorch."""

    def state_dict(self) -> Any:
        """Return the state, of the types that `stages.records.encode_state` supports."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Load what `state_dict` returned."""
