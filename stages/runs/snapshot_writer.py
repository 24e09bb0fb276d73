"""A thread that writes checkpoints, from a copy of their tensors in host memory, while training continues.

A copy has the size of the state, with Adam three times the parameters. A large state on a CPU can be written
without one, while training waits.
"""

import ctypes
import math
import mmap
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from stages.records import check_recordable, replace_tensors
from stages.runs.checkpointer import Checkpoint
from stages.system.processes import block_signals

ALIGNMENT = 8
"""Bytes of the largest element of a record; a copied range of memory starts at a multiple of it."""
WORD_BYTES = 4
PIECE_BYTES = 32 << 20
"""Bytes that are pinned, and copied, at once: the driver launches nothing while it pins memory."""
SPARE_BYTES = 1 << 20
"""Memory for what later checkpoints add, such as a position within the epoch."""
PORTABLE = 1
"""Of ``cudaHostRegister``: the memory is pinned for all devices."""
MADV_HUGEPAGE, MADV_WIPEONFORK = 14, 18
"""Of Linux; Python has no name for the second, and on macOS for neither."""


class HostSnapshot:
    """A buffer in host memory for the tensors of one checkpoint, which the next one reuses.

    It holds each byte of the state once, also if several tensors of the checkpoint are views of it.
    """

    def __init__(self) -> None:
        self._memory: Any = None
        self._buffer = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._device: torch.device | None = None
        """The device of CUDA from which tensors are copied."""
        self._arrivals: list[torch.cuda.Event] = []
        self.nbytes = 0
        """The bytes of the buffer that the last checkpoint takes."""

    def copy(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return *checkpoint* with copies of its tensors and containers; the previous copy becomes invalid.

        A copy from CUDA is queued on the current stream, before the next step changes the state. If the
        buffer is pinned, the host does not wait for it: call `synchronize` before you read the result.

        Raises `RecordError` if no record can hold one of the tensors.
        """
        tensors = _tensors_of(checkpoint)
        for tensor in tensors:
            check_recordable(tensor)
        ranges = _find_ranges(tensors)
        self._allocate(ranges)
        copies: dict[int, Tensor] = {}
        for source, place in zip(ranges, _places(ranges), strict=False):
            self._copy(source, place)
            copies.update(
                (id(tensor), source.find_copy(tensor, self._buffer, place)) for tensor in source.tensors
            )
        self._record_arrivals({source.storage.device for source in ranges if source.is_cuda})
        return _replace(
            checkpoint, lambda tensor: copies[id(tensor)] if id(tensor) in copies else _copy_to_host(tensor)
        )

    def _copy(self, source: "_Range", place: int) -> None:
        """Copy *source* to *place* in the buffer; from CUDA in parts that each are in one pinned piece."""
        content, end = source.content(), place + source.size
        step = PIECE_BYTES if source.is_cuda else end
        borders = [place, *range(place - place % step + step, end, step), end]
        for start, stop in pairwise(borders):
            unit = torch.uint8 if (stop - start) % WORD_BYTES else torch.int32  # bytes are copied more slowly
            part = content[start - place : stop - place].view(unit)
            self._buffer[start:stop].view(unit).copy_(part, non_blocking=source.is_cuda)

    def allocate(self, checkpoint: Checkpoint) -> bool:
        """Provide a buffer for a copy of *checkpoint*, and return whether it is a new one, to `touch`."""
        return self._allocate(_find_ranges(_tensors_of(checkpoint)))

    def _allocate(self, ranges: list["_Range"]) -> bool:
        self.nbytes = _places(ranges)[-1]
        if self.nbytes <= len(self._buffer):
            return False
        # free the previous one first
        self._memory = self._buffer = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._memory = _map_memory(self.nbytes + SPARE_BYTES)
        self._buffer = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._device = next((source.storage.device for source in ranges if source.is_cuda), None)
        return True

    def touch(self) -> None:
        """Write to the buffer, for which the system provides the memory only then, and pin it for CUDA.

        torch's own pinned memory has sizes of powers of two. If the driver cannot pin the buffer, copies
        have the same bytes, and the host waits for them. Call this in a thread that launches nothing, because
        the next launch would report the error of the driver.
        """
        self._buffer.zero_()
        if self._device is None:
            return
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(self._device):
            for piece in torch.split(self._buffer, PIECE_BYTES):
                if int(cudart.cudaHostRegister(piece.data_ptr(), len(piece), PORTABLE)):
                    return
                weakref.finalize(self._memory, cudart.cudaHostUnregister, piece.data_ptr())

    def synchronize(self) -> None:
        """Wait until the last copy has arrived from every device."""
        for arrival in self._arrivals:
            arrival.synchronize()

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

    def content(self) -> Tensor:
        """Return the bytes, which are not copied."""
        content = torch.empty(0, dtype=torch.uint8, device=self.storage.device)
        return content.set_(self.storage, self.start, (self.size,), (1,))

    def find_copy(self, tensor: Tensor, buffer: Tensor, place: int) -> Tensor:
        """Return the copy of *tensor* in *buffer*, which has the range at *place*, with its strides."""
        offset = tensor.storage_offset() + (place - self.start) // tensor.element_size()
        copy = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return copy.set_(buffer.untyped_storage(), offset, tensor.shape, tensor.stride())


def _tensors_of(checkpoint: Checkpoint) -> list[Tensor]:
    """Return each tensor of *checkpoint* once."""
    tensors: dict[int, Tensor] = {}
    _replace(checkpoint, lambda tensor: tensors.setdefault(id(tensor), tensor))
    return list(tensors.values())


def _places(ranges: list[_Range]) -> list[int]:
    """Return the position of each of *ranges* in a buffer for all, and the size of the buffer."""
    return list(accumulate((-(-source.size // ALIGNMENT) * ALIGNMENT for source in ranges), initial=0))


def _find_ranges(tensors: Iterable[Tensor]) -> list[_Range]:
    """Return the ranges of memory that *tensors* occupy; those that overlap are one range."""
    ranges: list[_Range] = []
    plain = ((_address(tensor), tensor) for tensor in tensors if _has_plain_memory(tensor))
    for address, tensor in sorted(plain, key=lambda pair: pair[0]):
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


def _map_memory(nbytes: int) -> Any:
    """Return memory as an array of bytes.

    On Linux it has huge pages, which are faster to copy to, and a forked worker has zeros in it, so that the
    next snapshot duplicates no shared page. With MADV_DONTFORK the worker could map other memory at the same
    address, which it would lose when it frees this object.
    """
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in (MADV_HUGEPAGE, MADV_WIPEONFORK) if sys.platform == "linux" else ():
        with suppress(OSError):  # a kernel without it
            memory.madvise(advice)
    return (ctypes.c_uint8 * nbytes).from_buffer(memory)


def _copy_to_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _replace(checkpoint: Checkpoint, change: Callable[[Tensor], Tensor]) -> Checkpoint:
    """Return *checkpoint* with *change* applied to each tensor from which a record of it is read."""
    items = {**vars(checkpoint), "trainer": dict(checkpoint.trainer)}
    return Checkpoint(**{part: replace_tensors(item, change) for part, item in items.items()})


NICENESS = 15
"""Niceness of the thread, and of those that it starts: training has priority."""
MAX_URGENT_BYTES = 16 << 20
"""Bytes up to which the niceness stays: a small write slows nothing, and on a busy machine it would wait."""
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


class SnapshotWriter:
    """A writer of checkpoints, one at a time, from a copy of their tensors and in its own thread.

    The thread receives no signals, so that handlers interrupt the main thread while it waits.
    """

    def __init__(self, max_copied_bytes: float = math.inf) -> None:
        """Create a writer that makes no copy of a state on a CPU of more than *max_copied_bytes*."""
        self._max_copied_bytes = max_copied_bytes
        self._snapshot = HostSnapshot()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_writing(self) -> bool:
        """True until the write that was started last has ended."""
        return self._thread is not None and self._thread.is_alive()

    def prepare(self, checkpoint: Checkpoint) -> bool:
        """Provide the memory for a copy of *checkpoint* in the thread, unless there is enough.

        Call this before the first `start` needs it. Return whether `start` makes a copy.
        """
        self.join()
        is_copied = self._copies(checkpoint)
        if is_copied and self._snapshot.allocate(checkpoint):
            self._start_thread(self._snapshot.touch)
        return is_copied

    def start(self, write: Callable[[Checkpoint], None], checkpoint: Checkpoint) -> None:
        """Copy *checkpoint* and call *write* with the copy in a thread, after the previous write has ended.

        Without a copy, return when the write has ended. Raises `RecordError` if no record can hold one of the
        tensors; without a copy, `raise_error` does.
        """
        is_copied = self.prepare(checkpoint)
        self.join()
        if not is_copied:
            self._start_thread(partial(write, checkpoint))
            self.join()
            return
        copy = self._snapshot.copy(checkpoint)
        self._start_thread(partial(self._write, write, copy))

    def join(self) -> None:
        """Wait until the write has ended. A handler of a signal may raise an exception here."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def raise_error(self) -> None:
        """Raise what the last write raised, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def release(self) -> None:
        """Free the memory of the copy, after the write has ended."""
        self._snapshot = HostSnapshot()

    def _copies(self, checkpoint: Checkpoint) -> bool:
        if self._max_copied_bytes == math.inf:
            return True
        ranges = _find_ranges(_tensors_of(checkpoint))
        return _places(ranges)[-1] <= self._max_copied_bytes or any(source.is_cuda for source in ranges)

    def _start_thread(self, action: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(action,), name="checkpoint-writer")
        with block_signals(*(signal.valid_signals() - FAULTS)):
            self._thread.start()

    def _run(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  `raise_error` raises it in the thread that trains
            self._error = error

    def _write(self, write: Callable[[Checkpoint], None], copy: Checkpoint) -> None:
        if self._snapshot.nbytes > MAX_URGENT_BYTES:
            _lower_priority()
        self._snapshot.synchronize()
        write(copy)


def _lower_priority() -> None:
    """Raise the niceness of this thread, unless it is higher already; only on Linux threads have one."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
