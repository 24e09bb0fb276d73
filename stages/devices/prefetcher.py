"""Batches that are copied to an accelerator ahead of their use, through pinned buffers and a side stream."""

import functools
import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import Any

import torch
from torch import Tensor

from stages.contracts.placement import transform

STREAM_DEVICES = ("cuda", "xpu")
"""Kinds of devices with streams and pinned memory."""
JOIN_SECONDS = 1.0
"""The most time for which the end of a pass waits for the batch that a thread is loading."""


class StreamCopier:
    """Copies from pinned memory on a side stream of an accelerator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module = torch.get_device_module(device)
        self._stream = self._module.Stream(device)

    def activate(self) -> AbstractContextManager[Any]:
        """Return a context with the device as the current one, in which a thread works with it."""
        context: AbstractContextManager[Any] = self._module.device(self.device)
        return context

    def allocate(self, nbytes: int) -> Tensor:
        """Return a pinned buffer for *nbytes* bytes, uint8."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def is_pinned(self, tensor: Tensor) -> bool:
        """Return whether *tensor* is in pinned memory, from which `copy` does not wait."""
        return tensor.is_pinned()

    def copying(self) -> AbstractContextManager[Any]:
        """Return a context with the side stream as the current one, so that `copy` runs beside the steps."""
        context: AbstractContextManager[Any] = self._module.stream(self._stream)
        return context

    def copy(self, staged: Tensor) -> Tensor:
        """Return *staged* on the device, without waiting for the copy on the current stream."""
        return staged.to(self.device, non_blocking=True)

    def record(self) -> torch.Event:
        """Record an event on the current stream."""
        event: torch.Event = self._module.current_stream(self.device).record_event()
        return event

    def wait(self, event: torch.Event) -> None:
        """Have the current stream wait; the host does not."""
        self._module.current_stream(self.device).wait_event(event)

    def receive(self, tensor: Tensor) -> None:
        """Keep the memory of *tensor*, which belongs to the side stream, for the current stream too."""
        tensor.record_stream(self._module.current_stream(self.device))


@functools.cache
def find_copier(device: torch.device) -> StreamCopier:
    """Return the copier of *device*, the same for every pass: torch keeps freed memory for each stream."""
    return StreamCopier(device)


@dataclass(frozen=True)
class Copied:
    """A batch whose tensors are on their way to the device; parts of other types are where they were."""

    batch: Any
    event: torch.Event


class StagingRing:
    """Host buffers that are used in turn, so that one is filled while others are copied.

    A tensor that is in pinned memory already is copied from there, and kept until its copy is complete.
    """

    def __init__(self, copier: StreamCopier, slots: int) -> None:
        self.copier = copier
        self._slots = itertools.cycle([_Slot(copier) for _ in range(slots)])

    def copy(self, batch: Any) -> Copied:
        """Start to copy *batch*; wait first for the copy that used the same buffers before."""
        slot = next(self._slots)
        slot.begin()
        with self.copier.copying():
            copied = transform(batch, slot.copy)
            slot.event = self.copier.record()
        return Copied(copied, slot.event)

    def receive(self, copied: Copied) -> Any:
        """Return the batch on the device, ready for the computation that now follows."""
        self.copier.wait(copied.event)
        return transform(copied.batch, self._receive)

    def _receive(self, part: Any) -> Any:
        on_device = part.to(self.copier.device, non_blocking=True)
        if on_device is part and isinstance(part, Tensor):
            self.copier.receive(part)
        return on_device


class _Slot:
    """The staging buffers of one batch, one for each of its tensors, and the event of their last copy."""

    def __init__(self, copier: StreamCopier) -> None:
        self.event: torch.Event | None = None
        self._copier = copier
        self._buffers: dict[int, Tensor] = {}
        self._used = 0
        self._pinned: list[Tensor] = []
        """The tensors that are copied without a buffer, which keeps their memory."""

    def begin(self) -> None:
        """Wait until the buffers may be overwritten."""
        self._used = 0
        if self.event is not None:
            self.event.synchronize()
        self._pinned.clear()

    def copy(self, part: Any) -> Any:
        """Start to copy *part*, and return the copy; return *part* itself if it cannot be staged."""
        if not _can_be_staged(part):
            return part
        if self._copier.is_pinned(part):
            self._pinned.append(part)
            return self._copier.copy(part)
        return self._copier.copy(self._stage(part))

    def _stage(self, tensor: Tensor) -> Tensor:
        """Return a copy of *tensor* in the next buffer, which grows if it is too small."""
        buffer = self._buffers.get(self._used)
        if buffer is None or len(buffer) < tensor.nbytes:
            buffer = self._buffers[self._used] = self._copier.allocate(tensor.nbytes)
        self._used += 1
        staged = buffer[: tensor.nbytes].view(tensor.dtype)
        if tensor.is_contiguous():
            staged = staged.view(tensor.shape)
        else:  # keep the memory format
            strides = torch.empty_like(tensor, device="meta").stride()
            staged = staged.as_strided(tensor.shape, strides)
        return staged.copy_(tensor)


def _can_be_staged(part: Any) -> bool:
    """Return whether *part* is a tensor whose bytes alone describe it; other parts are copied as a whole."""
    return (
        type(part) is Tensor
        and part.is_cpu
        and part.layout is torch.strided
        and not (part.is_nested or part.requires_grad or part.is_quantized)
        and part.numel() > 0
    )


def copy_in_turn(batches: Iterator[Any], ring: StagingRing) -> Iterator[Any]:
    """Return an iterator over *batches* on the device, each copied when it is requested."""
    return map(ring.receive, map(ring.copy, batches))


def prefetch(batches: Iterator[Any], ring: StagingRing, ahead: int) -> Iterator[Any]:
    """Yield *batches* on the device; a thread loads and copies up to *ahead* of them before they are used.

    *batches* must not draw from a global generator, which the thread that computes uses at the same time. An
    error of *batches* is raised at its position. If the iteration ends early, the thread closes *batches*
    after the batch that it is loading.
    """
    ready: SimpleQueue[Copied | BaseException | None] = SimpleQueue()
    permits, stopped = Semaphore(ahead), Event()

    def copy_batches() -> None:
        try:
            with ring.copier.activate():
                while permits.acquire() and not stopped.is_set():
                    batch = next(batches)
                    ready.put(ring.copy(batch))
                    del batch  # do not keep it until the next one is loaded
        except StopIteration:
            ready.put(None)
        except BaseException as error:  # noqa: BLE001  raised again by `receive`
            ready.put(error)
        finally:
            if hasattr(batches, "close"):
                batches.close()

    def receive(copied: Copied | BaseException) -> Any:
        if isinstance(copied, BaseException):
            raise copied
        permits.release()
        return ring.receive(copied)

    thread = Thread(target=copy_batches, name="prefetch", daemon=True)
    thread.start()
    try:
        copied: Iterator[Copied | BaseException] = iter(ready.get, None)
        yield from map(receive, copied)  # keeps no reference to the batches
    finally:
        stopped.set()
        permits.release()
        thread.join(JOIN_SECONDS)  # not for a batch that takes long
