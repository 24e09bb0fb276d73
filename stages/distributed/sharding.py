"""Fully sharded parameters (FSDP2): a rank holds a part of every parameter and of its optimizer state.

Checkpoints have no trace of it. They hold whole tensors, each of which is gathered when it is written.
The import of this module takes half as long as that of torch. So the Learner uses its names as attributes of
`stages.distributed`, which imports it when the first is used.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.overrides import TorchFunctionMode

from stages.contracts.errors import BuilderError
from stages.distributed.rank_group import RankGroup, explain_lost_rank
from stages.optim.gradients import Accumulation, Window

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
UNSHARDABLE = (torch.optim.Adafactor, torch.optim.Rprop)
"""Optimizers that cannot update parameters of which each rank has a part."""
PIECE = 1 << 20
"""The number of gradients that are added at a time, so that gloo needs little memory for them."""
END = -1
"""The number that rank 0 sends after the last tensor of a checkpoint."""


def shard_model(model: nn.Module, device: torch.device, size: int) -> None:
    """Shard the parameters of *model*, which all *size* ranks have, along their first axis, on *device*.

    The entries of each outermost `Sequential`, `ModuleList` and `ModuleDict` are gathered while they run, one
    after the other; all other parameters are gathered from a call of *model* to the end of its backward pass.
    The names of parameters and modules stay the same. Raises `BuilderError` if a parameter cannot be sharded.
    """
    mesh = init_device_mesh(device.type, (size,))
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()  # FSDP2 refuses channels-last weights
    names = {module: name for name, module in model.named_modules()}
    for unit in (*find_units(model), model):
        name = names[unit] or type(model).__name__
        _check_dtypes(unit, name)
        try:
            sharded = fully_shard(unit, mesh=mesh)
        except (ValueError, NotImplementedError) as error:
            reason = str(error).rstrip(".")
            raise BuilderError(f"cannot shard {name}: {reason}, or use the strategy ddp") from error
        if device.type == "cpu":
            _save_memory(sharded)


def _check_dtypes(unit: nn.Module, name: str) -> None:
    """Raise `BuilderError` if the parameters of *unit* that no other unit has are of several dtypes."""
    dtypes = {
        str(parameter.dtype).removeprefix("torch.")
        for parameter in unit.parameters()
        if parameter.requires_grad and not isinstance(parameter, DTensor)
    }
    if len(dtypes) > 1:
        raise BuilderError(
            f"cannot shard {name}: its parameters are of {' and '.join(sorted(dtypes))}. Convert them to one "
            "dtype, make its layers entries of an nn.ModuleList, or use the strategy ddp"
        )


def _save_memory(module: FSDPModule) -> None:
    """Have *module* use gloo with fewer copies, and gather no parameters ahead of their backward pass."""
    reduce_scatter: Any = _ReduceScatterByParts()
    module.set_custom_reduce_scatter(reduce_scatter)
    module.set_force_sum_reduction_for_comms(True)
    module.set_modules_to_backward_prefetch([module])  # itself, since none is the default: the next one


def find_units(model: nn.Module) -> list[nn.Module]:
    """Return the entries of the outermost containers in *model* that have parameters of their own only.

    A parameter has one unit. Those that several modules share, such as tied weights, are left to *model*.
    """
    entries = _find_entries(model)
    inside = {module for entry in entries for module in entry.modules()}
    users = Counter(id(parameter) for entry in entries for parameter in entry.parameters())
    for module in model.modules():
        if module not in inside:
            users.update(map(id, module.parameters(recurse=False)))
    return [entry for entry in entries if all(users[id(parameter)] == 1 for parameter in entry.parameters())]


def _find_entries(module: nn.Module) -> list[nn.Module]:
    """Return the modules with parameters that are entries of the outermost containers in *module*."""
    entries = [child for child in module.children() if next(child.parameters(), None) is not None]
    if isinstance(module, CONTAINERS):
        return entries
    return [unit for entry in entries for unit in _find_entries(entry)]


def replace_parameters(optimizer: torch.optim.Optimizer, before: Sequence[Tensor], model: nn.Module) -> None:
    """Have *optimizer* train the parameters of *model* in place of *before*, which it had until now."""
    shards = {id(old): new for old, new in zip(before, model.parameters(), strict=True)}
    for group in optimizer.param_groups:
        group["params"] = [shards.get(id(parameter), parameter) for parameter in group["params"]]
    for old in before:
        if old in optimizer.state:
            optimizer.state[shards[id(old)]] = optimizer.state.pop(old)
    _shard_state(optimizer)


def check_sharded_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raise `BuilderError` if *optimizer* cannot update sharded parameters.

    Adafactor needs the sums of whole rows and columns, and Rprop and the fused SGD use operations that FSDP2
    does not support.
    """
    is_fused_sgd = isinstance(optimizer, torch.optim.SGD) and any(
        group.get("fused") for group in optimizer.param_groups
    )
    if is_fused_sgd or isinstance(optimizer, UNSHARDABLE):
        name = f"{'fused ' * is_fused_sgd}{type(optimizer).__name__}"
        advice = "Set fused: false" if is_fused_sgd else "Use another optimizer"
        raise BuilderError(f"{name} cannot update sharded parameters. {advice}, or the strategy ddp")


@contextmanager
def accept_whole_tensors(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let the block load whole tensors into a sharded model and *optimizer*; each rank takes its part.

    The groups of *optimizer* keep their option ``fused``: that of a checkpoint may not support shards.
    """
    options = [group.get("fused") for group in optimizer.param_groups]
    with _ShardedCopies():
        yield
    for group, fused in zip(optimizer.param_groups, options, strict=True):
        if "fused" in group:
            group["fused"] = fused
    _shard_state(optimizer)


def to_local(tensor: Tensor | None) -> Tensor | None:
    """Return the part of *tensor* that this rank has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class _ReduceScatterByParts:
    """A reduce-scatter by reductions of pieces to the rank that has them.

    That of gloo copies the gradients of all ranks' parts twice.
    """

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a new tensor for the gradients."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, op: Any, **_: Any
    ) -> None:
        """Set *output_tensor* to this rank's part of *input_tensor*, added over all ranks."""
        parts = input_tensor.chunk(group.size())
        with explain_lost_rank():
            for rank, part in enumerate(parts):
                for piece in torch.split(part, PIECE):
                    torch.distributed.reduce(piece, op=op, group=group, group_dst=rank)
        output_tensor.copy_(parts[group.rank()])
        input_tensor.untyped_storage().resize_(0)  # FSDP2 keeps the tensor until the next reduce-scatter


class _ShardedCopies(TorchFunctionMode):
    """A mode in which ``shard.copy_(whole)`` copies the part of *whole* that this rank has."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.copy_:
            target, source, *rest = args
            args = target, _shard_like(source, target), *rest
        return func(*args, **(kwargs or {}))


def _shard_state(optimizer: torch.optim.Optimizer) -> None:
    """Shard the entries of the state of *optimizer* that have the shape of their parameter."""
    for parameter, entries in optimizer.state.items():
        for key, entry in entries.items() if isinstance(parameter, Tensor) else ():
            if isinstance(entry, Tensor) and entry.shape == parameter.shape:
                entries[key] = _shard_like(entry, parameter)


def _shard_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return the shard of *tensor*, which every rank has as a whole, if *parameter* is sharded."""
    if isinstance(tensor, DTensor) or not isinstance(parameter, DTensor):
        return tensor
    mesh: DeviceMesh = parameter.device_mesh
    return distribute_tensor(tensor.to(parameter.device), mesh, parameter.placements, src_data_rank=None)


class ShardedWindow(Window):
    """An accumulation window for gradients that are sharded means over all ranks."""

    def __init__(self, accumulation: Accumulation, parameters: Sequence[Tensor]) -> None:
        super().__init__(
            accumulation.batches, reduction=accumulation.reduction, leftover=accumulation.leftover
        )
        self._parameters = parameters

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the shards of *state*, which has whole tensors."""
        super().load_state_dict(state)
        pairs = zip(self._sums, self._parameters, strict=False)
        self._sums = [None if total is None else _shard_like(total, parameter) for total, parameter in pairs]


class TensorGathering:
    """The gathering of the sharded tensors of one checkpoint: all ranks gather those that rank 0 reads.

    Every rank prepares the same tensors in the same order. Rank 0 sends the number of each that it reads,
    and the others `follow`, so one whole tensor at a time is in memory.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._tensors: list[DTensor] = []
        self._lock = threading.Lock()  # a recorder may read in several threads

    def prepare(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Return a function that returns the whole of *tensor*; only rank 0 calls it."""
        if not isinstance(tensor, DTensor):
            return lambda: tensor
        self._tensors.append(tensor)
        return partial(self._read, len(self._tensors) - 1)

    def end(self) -> None:
        """End `follow` on the other ranks."""
        self._group.send_number(END)

    def follow(self) -> None:
        """Gather the tensors that rank 0 reads, until it calls `end`."""
        while (number := self._group.receive_number()) != END:
            self._gather(number)

    def _read(self, number: int) -> Tensor:
        with self._lock:
            self._group.send_number(number)
            return self._gather(number)

    def _gather(self, number: int) -> Tensor:
        with explain_lost_rank():
            return self._tensors[number].full_tensor()
