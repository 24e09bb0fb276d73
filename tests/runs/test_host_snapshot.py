"""A snapshot of a checkpoint shares nothing with the state, and holds each byte of it once."""

import gc
import mmap
import os
from contextlib import nullcontext

import psutil
import pytest
import torch
from torch import nn

from stages.contracts.errors import RecordError
from stages.records import NamedMpkBytesRecorder, OriginalPrecision, optimizer_record, record_of
from stages.runs import Checkpoint, SnapshotWriter, snapshot_writer
from stages.runs.snapshot_writer import SPARE_BYTES, HostSnapshot

VIEWS = {
    "contiguous": lambda base: base,
    "transposed": lambda base: base.t(),
    "rows": lambda base: base[1:3],
    "columns": lambda base: base[:, 2:4],
    "scalar": lambda base: base[3, 1],
    "empty": lambda base: base[:0],
    "expanded": lambda base: base[:1].expand(4, 6),
    "parameter": nn.Parameter,
}
KINDS = {
    **VIEWS,
    "half": lambda base: base.bfloat16(),
    "bool": lambda base: base > 3,
    "bytes of doubles": lambda base: base.double().view(torch.uint8)[:, 3:21],
    "negated": lambda base: torch.view_as_complex(base.reshape(-1, 2)).conj().imag,
    "large": lambda base: base.repeat(1 << 10, 1 << 5),
}


def base():
    return torch.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_snapshot_keeps_the_values_if_the_state_changes(kind):
    state = KINDS[kind](base())
    expected = state.detach().clone()

    copy = HostSnapshot().copy(Checkpoint({"w": state}, {}, None))
    state.untyped_storage().fill_(0)

    assert torch.equal(copy.model["w"], expected)


def test_views_keep_their_values_in_every_part_and_take_the_memory_of_one():
    state, snapshot = base(), HostSnapshot()
    views = [make(state) for make in VIEWS.values()]

    copy = snapshot.copy(Checkpoint({"views": views}, views, tuple(views), {"views": views}))

    assert snapshot.nbytes == state.nbytes
    for part in (copy.model["views"], copy.optim, copy.scheduler, copy.trainer["views"]):
        assert all(torch.equal(each, view) for each, view in zip(part, views, strict=True))


def test_next_snapshot_reuses_the_buffer_if_it_is_large_enough():
    snapshot, state = HostSnapshot(), [torch.ones(5), torch.ones(1 << 19), torch.ones(6)]
    first = snapshot.copy(Checkpoint(state, {}, None)).model

    second = snapshot.copy(Checkpoint(state[1:], {}, None)).model
    third = snapshot.copy(Checkpoint([*state, state[1] + 1], {}, None)).model

    storages = [each[0].untyped_storage() for each in (first, second, third)]
    assert storages[0].data_ptr() == storages[1].data_ptr() != storages[2].data_ptr()
    assert snapshot.nbytes == 2 * state[1].nbytes + 4 * (6 + 6), "each range starts at a multiple of 8"
    assert all(map(torch.equal, third, [*state, state[1] + 1]))


class Driver:
    """The registrations of host memory in a driver of CUDA, which fail if *error* is not 0."""

    def __init__(self, error=0):
        self.error, self.registered = error, {}

    def cudaHostRegister(self, address, nbytes, flags):  # noqa: N802  a name of CUDA
        self.registered.update({address: nbytes} if not self.error else {})
        return self.error

    def cudaHostUnregister(self, address):  # noqa: N802  a name of CUDA
        del self.registered[address]


@pytest.mark.parametrize("error", [0, 2], ids=["pinned", "refused"])
def test_memory_for_a_state_on_cuda_is_pinned_once_in_pieces_while_it_is_in_use(error, monkeypatch):
    monkeypatch.setattr(snapshot_writer, "PIECE_BYTES", 5 << 10)
    driver, state = Driver(error), [torch.full((3 << 10,), 2.0), torch.ones(3)]
    monkeypatch.setattr(snapshot_writer._Range, "is_cuda", True)
    monkeypatch.setattr(HostSnapshot, "_record_arrivals", lambda self, devices: None)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    writer, copies = SnapshotWriter(), []

    for _ in range(2):
        writer.start(copies.append, Checkpoint(state, {}, None))
        writer.join()
    registered = list(driver.registered.values())
    writer.release()
    is_equal = all(map(torch.equal, copies.pop().model, state))
    copies.clear()
    gc.collect()

    assert is_equal
    assert sum(registered) == (0 if error else 4 * (3 << 10) + 16 + SPARE_BYTES)
    assert max(registered, default=0) <= 5 << 10
    assert not driver.registered


def test_checkpoint_within_an_epoch_uses_the_memory_of_one_without_a_position():
    state, snapshot = torch.ones(1 << 10), HostSnapshot()
    snapshot.allocate(Checkpoint({"w": state}, {}, None))

    is_new = snapshot.allocate(Checkpoint({"w": state}, {}, None, {"place": torch.ones(5 << 10)}))

    assert not is_new


def test_allocated_memory_is_in_use_before_the_first_copy():
    state, snapshot, process = torch.ones(16 << 20), HostSnapshot(), psutil.Process()
    before = process.memory_info().rss

    snapshot.allocate(Checkpoint({"w": state}, {}, None))
    snapshot.touch()
    provided = process.memory_info().rss
    snapshot.copy(Checkpoint({"w": state}, {}, None))

    batches = 4 << 20  # the kernel adds the pages of a processor to this figure in batches
    assert provided - before >= state.nbytes - batches
    assert process.memory_info().rss - provided < state.nbytes // 2


def test_forked_process_that_frees_a_snapshot_keeps_its_own_memory():
    snapshot = HostSnapshot()
    snapshot.allocate(Checkpoint({"w": torch.zeros(1 << 22)}, {}, None))
    pid = os.fork()
    if pid == 0:
        blocks = [mmap.mmap(-1, 1 << 20) for _ in range(64)]  # the system may place them into a hole
        for block in blocks:
            block[:1] = b"x"
        del snapshot
        os._exit(0 if all(block[:1] == b"x" for block in blocks) else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_fork_copies_no_page_of_a_snapshot():
    snapshot = HostSnapshot()
    snapshot.allocate(Checkpoint({"w": torch.zeros(1 << 22)}, {}, None))
    snapshot.touch()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(reader, 1)
        os._exit(0)

    before = psutil.Process().memory_full_info().uss
    snapshot.touch()
    copied = psutil.Process().memory_full_info().uss - before
    os.write(writer, b"x")
    os.waitpid(pid, 0)

    assert copied < snapshot.nbytes / 2


def test_containers_are_copied():
    trainer = {"scheduler": {"rates": [0.1]}}

    copy = HostSnapshot().copy(Checkpoint({}, {}, None, trainer))
    trainer["scheduler"]["rates"].append(0.2)

    assert copy.trainer == {"scheduler": {"rates": [0.1]}}


def test_tensor_that_no_record_can_hold_is_rejected_at_once():
    with pytest.raises(RecordError, match="complex64 cannot be recorded"):
        HostSnapshot().copy(Checkpoint({}, {}, None, {"w": torch.ones(2, dtype=torch.complex64)}))


OPTIMIZERS = {
    "adam": lambda model: torch.optim.Adam(model.parameters(), amsgrad=True),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), centered=True, momentum=0.9),
    "muon": lambda model: torch.optim.Muon([model[0].weight], momentum=0.9),
    "lbfgs": lambda model: torch.optim.LBFGS(model.parameters(), max_iter=3),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_bytes_of_a_snapshot_are_those_of_the_state_at_its_time(kind):
    torch.manual_seed(1)
    model, inputs = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), torch.randn(8, 4)
    optimizer = OPTIMIZERS[kind](model)

    def step():
        def closure():
            optimizer.zero_grad()
            loss = (model(inputs) - 1).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    def record(checkpoint):
        item = [checkpoint.model, checkpoint.optim, checkpoint.trainer["state"]]
        return NamedMpkBytesRecorder(OriginalPrecision).record(item)

    step()
    checkpoint = Checkpoint(
        record_of(model), optimizer_record(optimizer, model), None, {"state": model.state_dict()}
    )
    expected = record(checkpoint)

    copy = HostSnapshot().copy(checkpoint)
    step()

    assert record(copy) == expected
    assert record(checkpoint) != expected


@pytest.mark.gpu
def test_copy_from_cuda_does_not_wait_and_has_the_values_of_its_time():
    state, writer, copies = torch.arange(1 << 22, device="cuda"), SnapshotWriter(), []
    writer.prepare(Checkpoint([state], {}, None))
    writer.join()

    assert writer._snapshot._buffer.is_pinned()
    torch.cuda.set_sync_debug_mode("error")
    try:
        writer.start(copies.append, Checkpoint([state], {}, None))
        state.zero_()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    writer.join()

    assert torch.equal(copies[0].model[0], torch.arange(1 << 22))
