"""Data parallelism: the share of each rank in a batch, its batch norms, and the sum of all gradients.

Every rank has the whole model. It computes the gradients of its share of a batch, and the gradients of all
ranks are added by the weights of their outputs, so that all ranks make the same update. That update is the
one of one process with the whole batch, up to rounding. `stages.distributed.sharding` is the other strategy,
in which a rank holds a part of the parameters.
"""

import logging
from collections import UserDict
from collections.abc import Collection, Iterable, Iterator, Sequence, Sized
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from stages.contracts.errors import BuilderError
from stages.contracts.outputs import Weight, as_count
from stages.contracts.placement import has_to, is_named_tuple, list_parts, share_of, transform
from stages.distributed.rank_group import RankGroup
from stages.optim.gradients import Accumulation, Gradients, Window

log = logging.getLogger(__name__)

UNSYNCHRONIZED_DEVICES = ("cpu", "mps")
"""Devices for which torch has no `SyncBatchNorm`."""


class Share(NamedTuple):
    """The part of a batch that this rank computes."""

    batch: Any
    """None if the rank has no sample of the batch."""
    samples: int
    """The number of samples of the batch, on all ranks together."""


def iterate_shares(
    batches: Iterable[Any], rank: int, size: int, *, fills_empty: bool = False
) -> Iterator[Share]:
    """Yield the share of *rank* in each of *batches*, which were loaded as a whole.

    With *fills_empty*, an empty share is the first sample. Raises `BuilderError` for a batch that cannot be
    divided.
    """
    for batch in batches:
        samples = _count_samples(batch)
        part = share_of(samples, rank, size)
        if fills_empty and part.stop == part.start:
            part = slice(0, 1)
        yield Share(_take(batch, part, samples) if part.stop > part.start else None, samples)


def _count_samples(batch: Any) -> int:
    """Return the length of the tensors in *batch*, and of other objects with ``to``."""
    kind = type(batch).__name__
    lengths = sorted({len(tensor) for tensor in list_parts(batch, _is_tensor) if _is_rows(tensor)})
    if not lengths:
        raise BuilderError(
            f"a batch of the type {kind} has no tensor whose first dimension counts the samples, so the "
            "ranks cannot divide it. Use a stages.data.DataLoader, or batches of tensors"
        )
    if len(lengths) > 1:
        raise BuilderError(
            f"a batch of the type {kind} has tensors of the lengths {', '.join(map(str, lengths))}, so the "
            "ranks cannot find its samples. Pad samples of different sizes, keep other tensors in the model, "
            "or use a stages.data.DataLoader"
        )
    return lengths[0]


def _take(batch: Any, part: slice, samples: int) -> Any:
    """Return the samples of *part*: of all tensors, arrays, lists and tuples whose length is *samples*."""

    def is_part(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return len(value) == samples and not is_named_tuple(value) and not list_parts(value, _is_tensor)
        return _is_tensor(value) or isinstance(value, np.ndarray)

    def cut(value: Any) -> Any:
        return value[part] if _is_rows(value) and len(value) == samples else value

    return transform(batch, cut, is_part)


def _is_tensor(part: Any) -> bool:
    """Return whether *part* has ``to`` and is not a mapping, as the batches of a tokenizer are."""
    return has_to(part) and not isinstance(part, UserDict)


def _is_rows(part: Any) -> bool:
    return isinstance(part, Sized | Sequence) and (not isinstance(part, Tensor | np.ndarray) or part.ndim > 0)


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


class GradientExchange:
    """One sum over the ranks of all gradients of *parameters*, with their weights, in one flat tensor.

    The tensor has the gradients of the parameters that are trained, then for each the number of ranks that
    have it, and the weight. It is float32, or float64 if a parameter is. A step may change which parameters
    are trained, on all ranks.
    """

    def __init__(self, group: RankGroup, parameters: Sequence[Tensor]) -> None:
        self._group = group
        self._parameters = parameters
        self._count = len(parameters)
        self._lay_out(self.find_trained())

    def find_trained(self) -> list[int]:
        """Return the places of the parameters that are trained, the same on all ranks."""
        return [number for number, parameter in enumerate(self._parameters) if parameter.requires_grad]

    def _lay_out(self, trained: list[int]) -> None:
        """Build the flat tensor for the parameters that are *trained*."""
        parameters, self._trained = self._parameters, trained
        self._dtypes = [parameters[number].dtype for number in trained]
        shapes = [parameters[number].shape for number in self._trained]
        sizes = [*(shape.numel() for shape in shapes), len(shapes), 1]
        wide = torch.float64 if torch.float64 in self._dtypes else torch.float32
        self._flat = torch.zeros(sum(sizes), dtype=wide, device=parameters[0].device)
        *parts, self._present, self._weight = torch.split(self._flat, sizes)
        self._is_wide = all(dtype is wide for dtype in self._dtypes)
        self._sums = self._flat[: -len(shapes) - 1]
        self._parts = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    @property
    def is_main(self) -> bool:
        """True on rank 0."""
        return self._group.is_main

    @property
    def total_weight(self) -> float:
        """The sum of the weights in the last exchange."""
        return as_count(float(self._weight))

    def mean(
        self, gradients: Gradients, weight: Weight, *, weighted: bool, trained: Collection[int] = ()
    ) -> list[Tensor | None] | None:
        """Return the mean gradients of all ranks, of which this one has *gradients* with *weight*.

        *weighted* gradients are multiplied by their weight already, and parameters that were *trained* when
        they were computed may be frozen now. A gradient is None if no rank has it. There is no mean if the
        sum of the weights is 0. The tensors are valid until the next exchange.
        """
        missing = self._add(gradients, weight, trained, weighted=weighted)
        is_empty = not isinstance(weight, Tensor) and weight == 0
        if is_empty and not self._weight.item():
            return None
        self._sums.div_(self._weight)
        return self._result(missing)

    def sum(
        self, gradients: Gradients, weight: Weight, *, trained: Collection[int] = ()
    ) -> list[Tensor | None]:
        """Return the sum over all ranks of gradients that are multiplied by their weight, as new tensors.

        Parameters that were *trained* when they were computed may be frozen now.
        """
        missing = self._add(gradients, weight, trained, weighted=True)
        return [None if gradient is None else gradient.clone() for gradient in self._result(missing)]

    def _add(
        self, gradients: Gradients, weight: Weight, trained: Collection[int], *, weighted: bool
    ) -> list[int]:
        """Add the gradients of all ranks, and return the places of those that this rank does not have."""
        if (places := sorted({*self.find_trained(), *trained})) != self._trained:
            self._lay_out(places)  # a step has frozen parameters or freed them
        of_rank = [gradients[number] for number in self._trained] if gradients else [None] * len(self._parts)
        missing = [number for number, gradient in enumerate(of_rank) if gradient is None]
        present = [_check_dense(gradient) for gradient in of_rank if gradient is not None]
        with torch.no_grad():
            self._present.fill_(1)
            for number in missing:
                self._parts[number].zero_()
                self._present[number] = 0
            if present:
                pairs = zip(self._parts, of_rank, strict=True)
                torch._foreach_copy_([part for part, gradient in pairs if gradient is not None], present)
            if not weighted:
                self._sums.mul_(weight)
            self._weight.fill_(weight)
            self._group.sum(self._flat)
        return missing

    def _result(self, missing: Sequence[int]) -> list[Tensor | None]:
        """Return the sums by the places of the parameters; None for those that no rank has."""
        absent = {number for number in missing if not self._present[number].item()}
        result: list[Tensor | None] = [None] * self._count
        parts = self._parts if self._is_wide else list(map(Tensor.to, self._parts, self._dtypes))
        for number, place in enumerate(self._trained):
            if number not in absent:
                result[place] = parts[number]
        return result


def _check_dense(gradient: Tensor) -> Tensor:
    """Return *gradient*. Raises `BuilderError` if it is sparse or complex."""
    if gradient.layout is not torch.strided or gradient.is_complex():
        raise BuilderError(
            f"several ranks cannot add gradients of {gradient.layout} and {gradient.dtype}. Use layers with "
            "dense gradients of real numbers, or one device"
        )
    return gradient


class RankWindow(Window):
    """An accumulation window whose gradients the ranks add when it is full.

    With the reduction ``sum``, of the mean gradients of several batches, they add those of each batch.
    """

    def __init__(self, accumulation: Accumulation, exchange: GradientExchange) -> None:
        super().__init__(
            accumulation.batches, reduction=accumulation.reduction, leftover=accumulation.leftover
        )
        self._exchange = exchange
        self._adds_means = self.reduction == "sum" and self.length > 1
        self._trained: set[int] = set()
        """The parameters that a batch of the window has trained, by their places; the same on all ranks."""

    def add(self, gradients: Gradients, weight: Weight) -> None:
        """Add the mean gradients of this rank's share of a batch, whose output has *weight*."""
        if self.length > 1:
            self._trained.update(self._exchange.find_trained())
        if self._adds_means:
            mean = self._exchange.mean(gradients, weight, weighted=False)
            gradients = [
                None if gradient is None else gradient.clone() for gradient in mean or [None] * len(gradients)
            ]
            weight = self._exchange.total_weight
        super().add(gradients, weight)

    def take(self) -> "Gradients | None":
        """Return the mean over the weights of all ranks, or the sum over batches, and clear the window."""
        if self._adds_means:
            return super().take()
        sums, weight, trained = self._sums, self._weight, self._trained
        self._clear()
        return self._exchange.mean(sums, weight, weighted=self.length > 1, trained=trained)

    def collect(self) -> None:
        """Move the sums of all ranks to rank 0, so that its checkpoint has them; call it between epochs."""
        if not self.batches or self._adds_means:
            return
        self._sums = self._exchange.sum(self._sums, self._weight, trained=self._trained)
        self._weight = self._exchange.total_weight
        for number, total in enumerate(self._sums):  # of a gradient that only other ranks have had
            if total is not None:
                self._dtypes.setdefault(number, total.dtype)
        self._keep_on_main()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a copy of *state*, the sums of all ranks, on rank 0, as `collect` left them."""
        super().load_state_dict(state)
        self._trained = {number for number, total in enumerate(self._sums) if total is not None}
        if not self._adds_means:
            self._keep_on_main()

    def _keep_on_main(self) -> None:
        """Set the sums of the other ranks to 0."""
        if not self._exchange.is_main:
            self._sums, self._weight = [None] * len(self._sums), 0

    def _clear(self) -> None:
        super()._clear()
        self._trained = set()
