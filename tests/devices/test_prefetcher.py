"""Batches that are copied ahead of their use, with the same control flow on every device."""

import threading
import traceback
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from plain_copier import PlainCopier
from waiting import LIMIT_SECONDS, wait_until

from stages.devices import StagingRing, copy_in_turn, prefetch

CPU = torch.device("cpu")


class Pair(NamedTuple):
    inputs: Any
    targets: Any


@dataclass
class Words:
    tokens: torch.Tensor
    names: list


class Recorder(PlainCopier):
    """Records when a staging buffer is allocated and when its last copy is awaited."""

    def __init__(self):
        super().__init__(CPU)
        self.allocated = []
        self.awaited = 0

    def allocate(self, nbytes):
        self.allocated.append(nbytes)
        return super().allocate(nbytes)

    def record(self):
        return self

    def synchronize(self):
        self.awaited += 1


def pairs(count, size=3):
    return [Pair(torch.full((size, 2), float(i)), torch.full((size,), i)) for i in range(count)]


def batches_of(source, ahead=2, copier=None):
    return prefetch(iter(source), StagingRing(copier or PlainCopier(CPU), ahead + 1), ahead)


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("ahead", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_batches_are_equal_and_in_order(count, ahead):
    assert_equal(list(batches_of(pairs(count), ahead)), pairs(count))


def test_batch_stays_equal_while_later_ones_reuse_its_buffer():
    found = list(batches_of(pairs(9), ahead=1))

    assert_equal(found, pairs(9))


def test_batches_may_differ_in_size():
    """The last batch is often smaller."""
    source = [*pairs(3), *pairs(2, size=1), *pairs(2, size=50)]

    assert_equal(list(batches_of(source)), source)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.uint8).reshape(2, 3),
        torch.tensor([True, False]),
        torch.tensor(3.0),
        torch.empty(0, 4),
        torch.randn(4, 3).T,
        torch.randn(1, 3).expand(4, 3),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3, dtype=torch.complex64),
        torch.eye(3).to_sparse(),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)} {tensor.layout}",
)
def test_any_tensor_keeps_values_type_and_memory_format(tensor):
    (found,) = batches_of([tensor])

    assert found.dtype == tensor.dtype
    assert torch.equal(found.to_dense() if found.is_sparse else found, tensor.to_dense())
    if not tensor.is_sparse:
        assert found.stride() == tensor.clone().stride()


def test_any_structure_of_tensors_is_copied():
    batch = {"words": Words(torch.arange(3), ["a", "b"]), "pair": (torch.ones(2), [torch.zeros(1)]), "n": 3}

    (found,) = batches_of([batch])

    assert str(found) == str(batch)
    assert found["words"].tokens is not batch["words"].tokens


def test_staging_buffers_are_reused_after_their_last_copy():
    copier = Recorder()

    list(batches_of(pairs(10), ahead=2, copier=copier))

    assert copier.allocated == [24, 24] * 3
    assert copier.awaited == 7


class Pinned(Recorder):
    """Treats every tensor as pinned, and every copy as incomplete until it is awaited."""

    def is_pinned(self, tensor):
        return True


def test_pinned_tensor_is_copied_without_a_staging_buffer_and_kept_until_the_copy_is_complete():
    copier, references = Pinned(), []

    def source():
        for number in range(5):
            tensor = torch.full((3,), float(number))
            references.append(weakref.ref(tensor))
            yield tensor
            del tensor

    batches = copy_in_turn(source(), StagingRing(copier, 2))

    found = []
    for number in range(1, 6):
        found.append(next(batches).tolist())
        alive = [index for index, each in enumerate(references) if each() is not None]
        assert alive == list(range(number))[-2:]
        assert copier.awaited == max(0, number - 2)
    assert found == [[float(number)] * 3 for number in range(5)]
    assert not copier.allocated


def test_batches_that_are_copied_in_turn_are_loaded_when_they_are_requested_in_the_same_thread():
    loaded = []

    def source():
        for number in range(3):
            loaded.append((number, threading.current_thread()))
            yield torch.tensor(number)

    batches = copy_in_turn(source(), StagingRing(PlainCopier(CPU), 2))

    for number in range(3):
        assert next(batches).item() == number
        assert loaded[-1] == (number, threading.current_thread())


def test_at_most_the_given_number_of_batches_is_loaded_ahead():
    loaded = []

    def source():
        for number in range(10):
            loaded.append(number)
            yield torch.tensor(number)

    batches = batches_of(source(), ahead=2)
    assert not loaded

    for number in range(3):
        next(batches)
        wait_until(lambda wanted=number + 3: len(loaded) == wanted)


def failing():
    yield torch.zeros(1)
    raise ValueError("image 7 is corrupt")


def test_error_is_raised_after_the_batches_before_it_with_the_frame_of_the_user():
    batches = batches_of(failing())
    next(batches)

    with pytest.raises(ValueError, match="image 7 is corrupt") as raised:
        next(batches)

    assert "in failing\n" in "".join(traceback.format_exception(raised.value))


def test_thread_ends_and_closes_its_source_when_the_pass_is_left_early():
    closed = threading.Event()

    def source():
        try:
            while True:
                yield torch.zeros(1)
        finally:
            closed.set()

    before = set(threading.enumerate())
    batches = batches_of(source())
    next(batches)
    del batches

    assert closed.wait(LIMIT_SECONDS)
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_pass_that_is_never_started_starts_no_thread():
    before = set(threading.enumerate())

    batches_of(pairs(3))

    assert set(threading.enumerate()) <= before


def test_leaving_a_pass_does_not_wait_for_a_batch_that_takes_long():
    may_continue = threading.Event()

    def source():
        yield torch.zeros(1)
        may_continue.wait(LIMIT_SECONDS)
        yield torch.ones(1)

    batches = batches_of(source())
    next(batches)
    batches.close()

    may_continue.set()
