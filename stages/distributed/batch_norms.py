"""Batch norms on several ranks, each of which has a share of the batch."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from stages.contracts.errors import BuilderError

UNSYNCHRONIZED_DEVICES = ("cpu", "mps")
"""Devices for which torch has no `SyncBatchNorm`."""


def find_batch_norms(model: nn.Module) -> list[str]:
    """Return the names of the classes in *model* that normalize by the statistics of this rank's share."""
    found = {type(each).__name__ for each in model.modules() if _is_local(each)}
    return sorted(found)


def has_synchronized_norms(model: nn.Module) -> bool:
    """Return whether the ranks exchange statistics in each pass of *model* in training mode."""
    return any(isinstance(each, nn.SyncBatchNorm) for each in model.modules())


def check_synchronization(model: nn.Module, device: torch.device) -> None:
    """Raise `BuilderError` if the batch norms of *model* on *device* cannot use those of the other ranks."""
    if device.type in UNSYNCHRONIZED_DEVICES:
        raise BuilderError(
            f"sync_batch_norm needs an accelerator for each rank, because torch has no SyncBatchNorm for a "
            f"{device.type}; found the device {device}. Leave sync_batch_norm out, or train on accelerators"
        )
    for name, module in model.named_modules():
        if _is_local(module) and (not name or type(module).forward is not _BatchNorm.forward):
            raise BuilderError(
                f"sync_batch_norm cannot replace {name or 'the model'}, because the methods of "
                f"{type(module).__name__} would be lost. Use nn.SyncBatchNorm there, or leave "
                "sync_batch_norm out"
            )


def synchronize_batch_norms(model: nn.Module) -> None:
    """Replace each batch norm in *model* by a `SyncBatchNorm` with the same name and the same tensors.

    Records are those of the batch norms. A module that *model* contains twice is replaced by one module.
    """
    replaced: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # noqa: SLF001  a name may hold dots
            if child is None or not _is_local(child):
                continue
            if child not in replaced:
                replaced[child] = nn.SyncBatchNorm.convert_sync_batchnorm(child)  # type: ignore[no-untyped-call]
            parent._modules[name] = replaced[child]  # noqa: SLF001


def _is_local(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
