"""Batch norms on several ranks, each of which has a share of the batch."""

import logging
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from stages.contracts.errors import BuilderError
from stages.contracts.placement import share_of

log = logging.getLogger(__name__)

UNSYNCHRONIZED_DEVICES = ("cpu", "mps")
"""Devices for which torch has no `SyncBatchNorm`."""


def find_batch_norms(model: nn.Module) -> list[str]:
    """Return the names of the classes in *model* that normalize by the statistics of this rank's share."""
    class_names = {type(module).__name__ for module in model.modules() if _is_local(module)}
    return sorted(class_names)


def warn_of_single_samples(model: nn.Module, samples: Iterable[int], ranks: int) -> None:
    """Log a warning if *model* has a `BatchNorm1d` and a rank has one sample of a batch of *samples* samples.

    It then raises an error in training, unless a sample has several positions.
    """
    if not any(isinstance(module, nn.BatchNorm1d) for module in model.modules()):
        return
    for count in samples:
        shares = [share_of(count, rank, ranks) for rank in range(ranks)]
        if any(share.stop - share.start == 1 for share in shares):
            where = (
                f"a batch of {count} samples has a share of one sample"
                if ranks > 1
                else "a batch has one sample"
            )
            log.warning(
                "%s, and BatchNorm1d needs two values of each channel in training: the run fails if its "
                "inputs are (B, C). Set another batch_size, leave out the last batch (drop_last of torch's "
                "DataLoader), or use fewer ranks",
                where,
            )
            return


def has_synchronized_norms(model: nn.Module) -> bool:
    """Return whether the ranks exchange statistics in each pass of *model* in training mode."""
    return any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())


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
