"""A copy of a checkpoint's tensors in host memory, which can be written while training continues."""

import mmap
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stages.checkpoints.checkpointer import Checkpoint
from stages.records import check_recordable, replace_tensors

ALIGNMENT = 8
"""Bytes of the largest element of a record; a copied range of memory starts at a multiple of it."""
WORD_BYTES = 4
MAPPED_BYTES = 1 << 20
"""Bytes from which a buffer is memory of its own, not of the heap."""


class HostSnapshot:
    """Buffers in host memory for the tensors of one checkpoint, which the next one reuses.

    They hold each byte of the state once, also if several tensors of the checkpoint are views of it. The
    buffers for tensors on CUDA are pinned.
    """

    def __init__(self) -> None:
        self._buffers: list[tuple[tuple[int, bool], Tensor]] = []
        self._arrivals: list[torch.cuda.Event] = []

    def copy(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return *checkpoint* with copies of its tensors and containers; the previous copy becomes invalid.

        A copy from CUDA is queued on the current stream, before the next step changes the state, and the host
        does not wait for it: call `synchronize` before you read the result.

        Raises `RecordError` if no record can hold one of the tensors.
        """
        tensors = _tensors_of(checkpoint)
        for tensor in tensors:
            check_recordable(tensor)
        ranges = self._allocate_for(tensors)
        copies: dict[int, Tensor] = {}
        for each, (_, buffer) in zip(ranges, self._buffers, strict=True):
            unit = torch.uint8 if each.size % WORD_BYTES else torch.int32  # bytes are copied more slowly
            buffer.view(unit).copy_(each.content().view(unit), non_blocking=each.is_cuda)
            copies.update((id(tensor), each.find_copy(tensor, buffer)) for tensor in each.tensors)
        self._record_arrivals({each.storage.device for each in ranges if each.is_cuda})
        return _replace(
            checkpoint, lambda each: copies[id(each)] if id(each) in copies else _copy_to_host(each)
        )

    def allocate(self, checkpoint: Checkpoint) -> None:
        """Allocate the buffers for a copy of *checkpoint*; the previous copy becomes invalid."""
        self._allocate_for(_tensors_of(checkpoint))

    def touch(self) -> None:
        """Write to the buffers, for which the system provides the memory only then."""
        for (_, is_pinned), buffer in self._buffers:
            if not is_pinned:
                buffer.zero_()

    @property
    def nbytes(self) -> int:
        """The bytes of all buffers."""
        return sum(buffer.nbytes for _, buffer in self._buffers)

    def synchronize(self) -> None:
        """Wait until the last copy has arrived from every device."""
        for arrival in self._arrivals:
            arrival.synchronize()

    def _allocate_for(self, tensors: Iterable[Tensor]) -> list["_Range"]:
        """Return the ranges of memory of *tensors*; the buffers are then those for them, in this order."""
        ranges = _find_ranges(tensor for tensor in tensors if _has_plain_memory(tensor))
        self._allocate([each.key for each in ranges])
        return ranges

    def _allocate(self, keys: list[tuple[int, bool]]) -> None:
        """Set the buffers to one for each of *keys*; the unused ones are freed before any is allocated."""
        unused: defaultdict[tuple[int, bool], list[Tensor]] = defaultdict(list)
        for key, buffer in self._buffers:
            unused[key].append(buffer)
        self._buffers = []
        reused = [unused[key].pop() if unused[key] else None for key in keys]
        unused.clear()
        for key, found in zip(keys, reused, strict=True):
            self._buffers.append((key, _empty(*key) if found is None else found))

    def _record_arrivals(self, devices: Iterable[torch.device]) -> None:
        self._arrivals = []
        for device in devices:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            self._arrivals.append(event)


@dataclass(eq=False)
class _Range:
    """A range of bytes of a storage, and the tensors of a checkpoint in it."""

    storage: torch.UntypedStorage
    start: int
    end: int
    tensors: list[Tensor]

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.end - self.start

    @property
    def is_cuda(self) -> bool:
        return self.storage.device.type == "cuda"

    @property
    def key(self) -> tuple[int, bool]:
        """The size of the buffer that can hold the range, and whether it is pinned."""
        return self.size, self.is_cuda

    def content(self) -> Tensor:
        """Return the bytes, which are not copied."""
        content = torch.empty(0, dtype=torch.uint8, device=self.storage.device)
        return content.set_(self.storage, self.start, (self.size,), (1,))

    def find_copy(self, tensor: Tensor, buffer: Tensor) -> Tensor:
        """Return the copy of *tensor* in *buffer*, which holds the range: a view with the same strides."""
        offset = tensor.storage_offset() - self.start // tensor.element_size()
        copy = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return copy.set_(buffer.untyped_storage(), offset, tensor.shape, tensor.stride())


def _tensors_of(checkpoint: Checkpoint) -> list[Tensor]:
    """Return each tensor of *checkpoint* once."""
    found: dict[int, Tensor] = {}
    _replace(checkpoint, lambda each: found.setdefault(id(each), each))
    return list(found.values())


def _find_ranges(tensors: Iterable[Tensor]) -> list[_Range]:
    """Return the ranges of memory that *tensors* occupy; those that overlap are one range."""
    ranges: list[_Range] = []
    for address, tensor in sorted(((_address(each), each) for each in tensors), key=lambda pair: pair[0]):
        start = address[-1] - address[-1] % ALIGNMENT
        end = address[-1] + _extent(tensor)
        last = ranges[-1] if ranges else None
        if last and _address(last.tensors[0])[:-1] == address[:-1] and start < last.end:
            last.end = max(last.end, end)
            last.tensors.append(tensor)
        else:
            ranges.append(_Range(tensor.untyped_storage(), start, end, [tensor]))
    return ranges


def _address(tensor: Tensor) -> tuple[str, int, int]:
    """Return the device, the address of the storage, and the offset in it in bytes."""
    offset = int(tensor.storage_offset()) * tensor.element_size()
    return str(tensor.device), tensor.untyped_storage().data_ptr(), offset


def _extent(tensor: Tensor) -> int:
    """Return the number of bytes from the first to the last element."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _has_plain_memory(tensor: Tensor) -> bool:
    """Return whether the values of *tensor* are the bytes of its storage, on the CPU or on CUDA."""
    is_plain = type(tensor) in (Tensor, nn.Parameter) and not tensor.is_neg()
    return is_plain and tensor.device.type in ("cpu", "cuda") and tensor.numel() > 0


def _empty(size: int, pinned: bool) -> Tensor:  # noqa: FBT001  a key of the buffers
    """Return a buffer.

    A large one has huge pages, which are faster to copy to. Forked workers do not inherit it, because the
    next snapshot would have to duplicate its pages.
    """
    if pinned or size < MAPPED_BYTES:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_DONTFORK)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _copy_to_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _replace(checkpoint: Checkpoint, change: Callable[[Tensor], Tensor]) -> Checkpoint:
    """Return *checkpoint* with *change* applied to each tensor from which a record of it is read."""
    items = {**vars(checkpoint), "trainer": dict(checkpoint.trainer)}
    return Checkpoint(**{part: replace_tensors(item, change) for part, item in items.items()})
