"""The ranks of a run, in the environment that torch's elastic launcher (``torchrun``) sets.

Every rank calls the same methods in the same order, because a collective operation waits for all ranks.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from stages.contracts.errors import BuilderError, RankLostError
from stages.devices import find_device
from stages.records import NamedMpkBytesRecorder, OriginalPrecision, Tree

RANK, LOCAL_RANK = "RANK", "LOCAL_RANK"
WORLD_SIZE, LOCAL_WORLD_SIZE = "WORLD_SIZE", "LOCAL_WORLD_SIZE"
"""Environment variables of torchrun."""
TIMEOUT_SECONDS = 600.0
"""The time after which a collective operation fails, because a rank does not take part."""

MIN_SWAPPED_BYTES = 2**20
"""The size from which two ranks on a CPU swap tensors; gloo's all-reduce is faster for smaller ones.

The sums have the same bits.
"""

MAX_WAIT = timedelta(days=7)
"""The time that the other ranks wait for rank 0 while it prepares or publishes a run."""

_recorder = NamedMpkBytesRecorder(OriginalPrecision)


@dataclass(eq=False)
class RankGroup:
    """A group of one rank, this process, in which every operation returns at once."""

    rank: int = 0
    """The number of this rank, from 0."""
    size: int = 1
    """The number of ranks."""

    @property
    def is_main(self) -> bool:
        """True for rank 0, which alone writes, logs and renders."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:  # noqa: FBT001  the value to reduce
        """Return whether *flag* is true on any rank."""
        return flag

    def sum(self, tensor: Tensor) -> None:
        """Replace *tensor* by its sum over all ranks, with the same bits on each."""

    def broadcast(self, tree: Tree) -> Tree:
        """Return the *tree* of rank 0, of plain values and tensors; that of the other ranks is ignored."""
        return tree

    def announce(self, *, training: bool) -> None:
        """Have `will_train` return *training* on the other ranks; only rank 0 calls this."""
        self.send_number(int(training))

    def will_train(self) -> bool:
        """Return what rank 0 announces next, after any time; only the other ranks call this."""
        return bool(self.receive_number())

    def send_number(self, number: int) -> None:
        """Send *number* to the other ranks, which may take any time to `receive_number`; on rank 0."""

    def receive_number(self) -> int:
        """Return the number that rank 0 sends next, after any time; on the other ranks."""
        return 0

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Copy the values of rank 0's *tensors* to those of the other ranks."""

    def gather(self, tree: Tree) -> list[Tree]:
        """Return the *tree* of every rank, by its number, on rank 0; an empty list on the others."""
        return [tree]


ONE_RANK = RankGroup()
_joined: list[RankGroup] = []
"""The group that this process has joined."""


class ProcessRankGroup(RankGroup):
    """The ranks of torch.distributed's default group: gloo for the host, and the backend of the device.

    Every operation raises `RankLostError` if another rank does not take part.
    """

    def __init__(self) -> None:
        super().__init__(torch.distributed.get_rank(), torch.distributed.get_world_size())
        with explain_lost_rank():
            self._patient = torch.distributed.new_group(backend="gloo", timeout=MAX_WAIT)
        self._received = torch.empty(0, dtype=torch.uint8, device="cpu")

    def send_number(self, number: int) -> None:
        """Send *number* to the other ranks, which may take any time to `receive_number`; on rank 0."""
        with explain_lost_rank():
            torch.distributed.broadcast(torch.tensor(number, device="cpu"), 0, group=self._patient)

    def receive_number(self) -> int:
        """Return the number that rank 0 sends next, after any time; on the other ranks."""
        number = torch.tensor(0, device="cpu")
        with explain_lost_rank():
            torch.distributed.broadcast(number, 0, group=self._patient)
        return int(number)

    def any(self, flag: bool) -> bool:  # noqa: FBT001  the value to reduce
        """Return whether *flag* is true on any rank."""
        value = torch.tensor(int(flag), device="cpu")
        with explain_lost_rank():
            torch.distributed.all_reduce(value, torch.distributed.ReduceOp.MAX)
        return bool(value)

    def sum(self, tensor: Tensor) -> None:
        """Replace *tensor* by its sum over all ranks, with the same bits on each."""
        with explain_lost_rank():
            is_large = tensor.nbytes >= MIN_SWAPPED_BYTES
            if is_large and self.size == 2 and tensor.device.type == "cpu":
                self._swap_and_add(tensor)
            else:
                torch.distributed.all_reduce(tensor)

    def _swap_and_add(self, tensor: Tensor) -> None:
        """Add the *tensor* of the other of two ranks, which copies less than an all-reduce of gloo."""
        other = self._view_received(tensor)
        exchange = torch.distributed.P2POp
        sent_and_received = [
            exchange(torch.distributed.isend, tensor, 1 - self.rank),
            exchange(torch.distributed.irecv, other, 1 - self.rank),
        ]
        for work in torch.distributed.batch_isend_irecv(sent_and_received):
            work.wait()
        torch.add(*((tensor, other) if self.is_main else (other, tensor)), out=tensor)

    def _view_received(self, tensor: Tensor) -> Tensor:
        """Return a tensor like *tensor*, in memory that every call uses."""
        if len(self._received) < tensor.nbytes:
            self._received = torch.empty(tensor.nbytes, dtype=torch.uint8, device="cpu")
        return self._received[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def broadcast(self, tree: Tree) -> Tree:
        """Return the *tree* of rank 0, of plain values and tensors; that of the other ranks is ignored."""
        data = _to_bytes(tree) if self.is_main else torch.empty(0, dtype=torch.uint8, device="cpu")
        size = torch.tensor(len(data), device="cpu")
        with explain_lost_rank():
            torch.distributed.broadcast(size, 0)
            if not self.is_main:
                data = torch.empty(int(size), dtype=torch.uint8, device="cpu")
            torch.distributed.broadcast(data, 0)
        return tree if self.is_main else _from_bytes(data)

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Copy the values of rank 0's *tensors* to those of the other ranks."""
        for tensor in tensors:
            dense = tensor.detach().contiguous()  # the weights of a model may be channels-last
            with explain_lost_rank():
                torch.distributed.broadcast(dense.view(-1).view(torch.uint8), 0)  # of any dtype
            tensor.detach().copy_(dense)

    def gather(self, tree: Tree) -> list[Tree]:
        """Return the *tree* of every rank, by its number, on rank 0; an empty list on the others."""
        data = _to_bytes(tree)
        sizes = [torch.tensor(0, device="cpu") for _ in range(self.size)]
        with explain_lost_rank():
            torch.distributed.all_gather(sizes, torch.tensor(len(data), device="cpu"))
            if self.is_main:
                return [tree, *(self._receive(rank, int(sizes[rank])) for rank in range(1, self.size))]
            torch.distributed.send(data, 0)
        return []

    def _receive(self, rank: int, size: int) -> Tree:
        data = torch.empty(size, dtype=torch.uint8, device="cpu")
        torch.distributed.recv(data, rank)
        return _from_bytes(data)


@contextmanager
def explain_lost_rank(kind: type[RuntimeError] = RuntimeError) -> Iterator[None]:
    """Raise `RankLostError` if an operation of torch.distributed in the block raises a *kind* of error."""
    try:
        yield
    except kind as error:
        raise RankLostError(
            f"another rank does not respond ({str(error).partition('. ')[0]}). See its error. Run the "
            "same command again to resume"
        ) from error


def count_ranks() -> int:
    """Return the number of ranks that the launcher has started; 1 without a launcher."""
    return int(os.environ.get(WORLD_SIZE, "1")) if RANK in os.environ else 1


def find_rank_device(devices: Sequence[str | torch.device]) -> torch.device:
    """Return the device of this rank among *devices*, which has an entry for each rank of this host.

    With one entry, ``auto`` and ``cuda`` are the accelerator with the number of the rank on this host, and
    ``cpu`` is the device of all ranks. Raises `BuilderError` if there is no rank, or no entry for it.
    """
    local_rank = int(os.environ.get(LOCAL_RANK, "0"))
    if count_ranks() == 1:
        if len(devices) > 1:
            raise BuilderError(
                f"devices [{', '.join(map(str, devices))}] need a process each. Start the program with "
                f"torchrun --nproc-per-node {len(devices)} PROGRAM, or name one device"
            )
        return find_device(devices[0])
    local_size = int(os.environ.get(LOCAL_WORLD_SIZE, os.environ[WORLD_SIZE]))
    if len(devices) == 1:
        device = find_device(devices[0])
        if device.type in ("cpu", "mps") or ":" in str(devices[0]):
            return device
        return find_device(f"{device.type}:{local_rank}")
    if len(devices) != local_size:
        raise BuilderError(
            f"{LOCAL_WORLD_SIZE} is {local_size}, but there are {len(devices)} devices. Start one rank for "
            f"each device: torchrun --nproc-per-node {len(devices)}"
        )
    return find_device(devices[local_rank])


def join_group(
    devices: Sequence[str | torch.device] = ("cpu",), timeout_seconds: float = TIMEOUT_SECONDS
) -> RankGroup:
    """Return the group of this rank; a group of one without a launcher.

    Ranks that share an accelerator of *devices* exchange tensors by gloo, because NCCL refuses them: slow,
    but the code of several GPUs can be tried on one. The first call waits until all ranks have called it, and
    gives each rank of this host the same part of torch's threads. Later calls return the same group.
    """
    if count_ranks() == 1:
        return ONE_RANK
    if _joined:
        return _joined[0]
    if not torch.distributed.is_initialized():
        with explain_lost_rank(torch.distributed.DistError):
            _init_process_group(_find_backend(devices), timedelta(seconds=timeout_seconds))
        atexit.register(_leave_group)  # at the exit of the interpreter, its threads may abort the process
    local_size = int(os.environ.get(LOCAL_WORLD_SIZE, os.environ[WORLD_SIZE]))
    torch.set_num_threads(max(1, torch.get_num_threads() // local_size))
    _joined.append(ProcessRankGroup())
    return _joined[0]


def _init_process_group(backend: str, timeout: timedelta) -> None:
    """Join the other ranks in a thread, so that a signal ends the wait of this one, which lasts minutes."""
    joined: Future[None] = Future()

    def join() -> None:
        try:
            joined.set_result(torch.distributed.init_process_group(backend, timeout=timeout))
        except BaseException as error:  # noqa: BLE001  it is raised in the thread that waits
            joined.set_exception(error)

    threading.Thread(target=join, daemon=True).start()
    joined.result()


def _find_backend(devices: Sequence[str | torch.device]) -> str:
    """Return the backend for tensors on the host and on the device of this rank."""
    kind = find_rank_device(devices).type
    if kind == "cpu":
        return "gloo"
    is_shared = len(set(map(str, devices))) < len(devices) if len(devices) > 1 else ":" in str(devices[0])
    backend = "gloo" if is_shared else torch.distributed.get_default_backend_for_device(kind)
    return f"cpu:gloo,{kind}:{backend}"


def _leave_group() -> None:
    """End the threads and the connections of all groups, unless the program has done so."""
    _joined.clear()
    with suppress(RuntimeError, ValueError):  # another rank was lost
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _to_bytes(tree: Tree) -> Tensor:
    return torch.frombuffer(bytearray(_recorder.record({"tree": tree})), dtype=torch.uint8)


def _from_bytes(data: Tensor) -> Tree:
    read = _recorder.load(data.numpy().tobytes())
    return read["tree"]


INTERVAL_SECONDS = 0.25
MAX_GAP = 64
"""The most steps from one exchange of the ranks to the next."""


class Agreement:
    """Whether to stop and whether to save, on which the ranks agree without waiting for each other.

    An exchange is started at one step and read some steps later, at the same step on every rank: after about
    `INTERVAL_SECONDS`, as rank 0 measures it, and at most `MAX_GAP` steps.
    """

    def __init__(self, group: RankGroup, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._clock = clock
        self._wanted = [False, False]
        self._agreed = [False, False]
        self._steps_left = 0
        self._gap = 1
        self._started_at = clock()
        self._exchange: tuple[Any, torch.Tensor] | None = None
        with explain_lost_rank():
            self._channel = torch.distributed.new_group(backend="gloo")

    def poll(self, *, stop: bool, save: bool) -> tuple[bool, bool]:
        """Return whether to stop and whether to save after this step; call it once after each step.

        *stop* and *save* are what this rank asks for. What was agreed is returned until `end_save`.
        """
        self._wanted = [self._wanted[0] or stop, self._wanted[1] or save]
        self._steps_left -= 1
        if self._steps_left <= 0:
            self._read()
            self._start()
        return self._agreed[0], self._agreed[1]

    def end_save(self) -> None:
        """Forget the agreement to save, because it was carried out."""
        self._agreed[1] = False

    def close(self) -> None:
        """Wait for the exchange in progress, if any."""
        self._read()

    def _start(self) -> None:
        now = self._clock()
        seconds, self._started_at = (now - self._started_at) / self._gap, now
        gap = int(min(max(INTERVAL_SECONDS / max(seconds, 1e-9), 1), MAX_GAP)) if self._group.is_main else 0
        flags = torch.tensor([*self._wanted, gap], dtype=torch.int32, device="cpu")
        self._wanted = [False, False]
        maximum = torch.distributed.ReduceOp.MAX
        with explain_lost_rank():
            work = torch.distributed.all_reduce(flags, maximum, group=self._channel, async_op=True)
        self._exchange = work, flags
        self._steps_left = self._gap

    def _read(self) -> None:
        if self._exchange is None:
            return
        (work, flags), self._exchange = self._exchange, None
        with explain_lost_rank():
            work.wait()
        stop, save, self._gap = flags.tolist()
        self._agreed = [self._agreed[0] or bool(stop), self._agreed[1] or bool(save)]
