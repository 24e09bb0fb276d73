"""Captures share a pool of memory, and none that torch refuses: after a failure, and after the last graph.

The allocators of torch are represented by their rules for pools (CUDACachingAllocator and
CachingHostAllocator of torch 2.11): a recording that is not ended stays registered in the host's, and a pool
whose graphs have all been dropped cannot be used again.
"""

import weakref
from contextlib import contextmanager, nullcontext
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from stages.devices import cuda_capturer
from stages.devices.cuda_capturer import CudaCapturer


class Pools:
    """The pools of a device, the graphs that use each, and those that the host's allocator records to."""

    def __init__(self):
        self.graphs = {}
        self.released = set()
        self.recorded_on_host = {}

    @contextmanager
    def capture(self, graph, pool, stream, capture_error_mode):
        if pool in self.recorded_on_host:
            raise RuntimeError("begin_allocate_to_pool: already recording to mempool_id")
        if pool in self.graphs and not self.graphs[pool]:
            raise RuntimeError("INTERNAL ASSERT FAILED: it->second->use_count > 0")
        self.graphs.setdefault(pool, weakref.WeakSet()).add(graph)
        try:
            yield
        except TypeError:  # an error of Python, after which the capture can be ended
            raise
        except RuntimeError:
            self.recorded_on_host[pool] = weakref.ref(graph)
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904  in __exit__

    def end(self, _index, pool):
        if pool not in self.recorded_on_host or pool in self.released:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.released.add(pool)


class Graph:
    def replay(self):
        pass


@pytest.fixture
def pools(monkeypatch):
    pools, handles = Pools(), count()
    generator = SimpleNamespace(clone_state=lambda: None, graphsafe_set_state=lambda state: None)
    cuda = SimpleNamespace(
        CUDAGraph=Graph,
        Stream=lambda index: object(),
        current_stream=lambda index: object(),
        default_generators=[generator],
        graph=pools.capture,
        graph_pool_handle=lambda: next(handles),
        set_stream=lambda stream: None,
        stream=lambda stream: nullcontext(),
    )
    names = SimpleNamespace(_cuda_endAllocateToPool=pools.end, _cuda_releasePool=lambda *_: None)
    monkeypatch.setattr(cuda_capturer, "torch", SimpleNamespace(cuda=cuda, _C=names))
    return pools


def fail():
    raise RuntimeError("operation not permitted when stream is capturing")


def test_graphs_share_a_pool(pools):
    capturer = CudaCapturer(torch.device("cuda:0"))

    graphs = [capturer.capture(lambda number=number: number) for number in range(2)]

    assert [graph() for graph in graphs] == [0, 1]
    assert [len(users) for users in pools.graphs.values()] == [2]


@pytest.mark.parametrize("error", [RuntimeError, TypeError])
def test_step_is_captured_after_a_capture_that_failed(error, pools):
    capturer = CudaCapturer(torch.device("cuda:0"))
    earlier = capturer.capture(lambda: 0)

    with pytest.raises(error):
        capturer.capture(lambda: fail() if error is RuntimeError else len(0))
    del earlier

    assert capturer.capture(lambda: 1)() == 1


def test_step_is_captured_after_all_graphs_were_dropped(pools):
    capturer = CudaCapturer(torch.device("cuda:0"))
    capturer.capture(lambda: 0)

    capturer.renew()

    assert capturer.capture(lambda: 1)() == 1


def test_graph_of_a_failed_capture_is_kept_for_the_allocator_that_refers_to_it(pools):
    capturer = CudaCapturer(torch.device("cuda:0"))

    with pytest.raises(RuntimeError):
        capturer.capture(fail)

    assert all(graph() is not None for graph in pools.recorded_on_host.values())
