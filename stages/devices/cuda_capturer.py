"""Captures of the work that is launched on a device, as CUDA graphs."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class CudaCapturer:
    """Captures the work on a CUDA *device* in graphs that share their memory."""

    _failed: ClassVar[list[torch.cuda.CUDAGraph]] = []
    """Graphs whose capture failed. torch's allocator of pinned memory may still refer to them."""

    def __init__(self, device: torch.device) -> None:
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._stream = _capture_stream(self._index)
        self.renew()

    def renew(self) -> None:
        """Prepare for captures that share no memory with earlier ones, all of which have been dropped.

        torch accepts no pool again after a failure, or after the last graph in it.
        """
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Launch the work of the block on the stream of captures, in order with the current stream."""
        current = torch.cuda.current_stream(self._index)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        """Capture what *run* launches, without executing it, and return a function that launches it.

        Each call of that function returns the same tensors, those of *run*, with new values. Other threads,
        which copy batches and checkpoints, may use the device meanwhile. If the capture fails, nothing has
        changed except that earlier ones are no longer valid.
        """
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._index)
        generator = torch.cuda.default_generators[self._index]
        random_state = generator.clone_state()
        try:
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                results = run()
        except BaseException:
            # if the capture cannot be ended, torch leaves the stream, the generator and the allocator in it
            torch.cuda.set_stream(current)
            generator.graphsafe_set_state(random_state)
            with suppress(RuntimeError):  # it could be ended
                torch._C._cuda_endAllocateToPool(self._index, self._pool)  # noqa: SLF001  no public name
                torch._C._cuda_releasePool(self._index, self._pool)  # noqa: SLF001  no public name
                self._failed.append(graph)
            self.renew()
            raise

        def replay() -> T:
            graph.replay()
            return results

        return replay


class ResultRing:
    """The numbers that a graph computes in its last *slots* launches, float64.

    A graph writes to the next slot, so that nothing need be copied after a launch. The memory is allocated
    outside of graphs, because a launch overwrites all memory of its graph. An operation on the entire buffer
    writes, because `index_copy_` sorts if algorithms must be deterministic.
    """

    def __init__(self, device: torch.device, slots: int, widths: Mapping[str, int]) -> None:
        """Allocate a buffer for each name in *widths*, which has the most numbers of a launch."""
        self._positions = torch.arange(slots, device=device).unsqueeze(1)
        self._slot = torch.zeros((), dtype=torch.int64, device=device)
        self._count, self._launches = slots, 0
        self._buffers = {
            name: torch.zeros((slots, width), dtype=torch.float64, device=device)
            for name, width in widths.items()
        }

    def write(self, **numbers: Tensor) -> dict[str, tuple[Tensor, ...]]:
        """Write vectors to the next slot of the buffers of these names, and return all slots of them.

        A graph records it.
        """
        slots, is_next = {}, self._positions == self._slot
        for name, values in numbers.items():
            buffer = self._buffers[name][:, : len(values)]
            torch.where(is_next, values, buffer, out=buffer)
            slots[name] = buffer.unbind()
        self._slot.add_(1)
        return slots

    def advance(self) -> int:
        """Return the slot of the next launch."""
        slot = self._launches % self._count
        if slot == 0:
            self._slot.zero_()
        self._launches += 1
        return slot


@functools.cache
def _capture_stream(index: int) -> torch.cuda.Stream:
    """Return the stream of captures on a device, always the same: cuBLAS keeps memory for each stream."""
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
