"""Direct calls of PyTorch's fused optimizer kernels, with the same bits and the same state as `torch.optim`.

A lane holds the parameters of one group that are on one device and have one dtype, which is what one call of
a kernel accepts. Its lists are reused for as long as the same parameters have gradients.

The rate of a group may be a tensor on the device, which a CUDA graph reads when it is launched. On CUDA the
kernels read it as float32, so other rates are rounded to float32 there: all steps have the same bits.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import compress, repeat
from operator import is_not, itemgetter, not_
from typing import Any

import torch
from torch import Tensor

from stages.optim.gradients import FLOAT32_BYTES, Gradients
from stages.optim.torch_patches import check

UNSUPPORTED = ("amsgrad", "maximize", "capturable", "differentiable")
SELECTING = (*UNSUPPORTED, "fused", "foreach", "decoupled_weight_decay")
"""Options that select the kernel. All other options are read at each step."""


class Lane:
    """The parameters that one call of a kernel updates."""

    def __init__(self, group: dict[str, Any], state: Any, members: dict[int, Tensor]) -> None:
        self.group = group
        self.state = state
        self.members = members
        self.parameters: list[Tensor] = []
        """The members that have a gradient; the list is the same for as long as they are."""
        self.updated: list[Tensor] | None = None
        """The list `parameters` of the last update."""
        first, *others = members
        self._choose = itemgetter(*members) if others else itemgetter(slice(first, first + 1))
        self._has_gradient: list[bool] = []
        self._strides: list[tuple[int, ...]] = []

    def select(self, gradients: Gradients) -> list[Tensor]:
        """Return the gradients of the members that have one, and set `parameters`.

        They have the strides of their parameters, which the kernels assume. The gradients of
        ``loss.backward()`` have them; those of `torch.autograd.grad` may differ.
        """
        of_members = self._choose(gradients)
        has_gradient = [*map(is_not, of_members, repeat(None))]
        if has_gradient != self._has_gradient:
            self._has_gradient = has_gradient
            self.parameters = [*compress(self.members.values(), has_gradient)]
            self._strides = [*map(Tensor.stride, self.parameters)]
        selected: list[Tensor] = [*compress(of_members, has_gradient)]
        if [*map(Tensor.stride, selected)] != self._strides:
            selected = [*map(match_strides, selected, self.parameters)]
        return selected

    def step(self, gradients: Gradients, skip: Tensor | None = None) -> bool:
        """Update the parameters that have a gradient, with the learning rate of their group.

        If *skip*, a tensor on the device of the lane, is 1, nothing is updated. Return whether entries of the
        state were created or replaced.
        """
        raise NotImplementedError


class AdamLane(Lane):
    """A lane of Adam or AdamW, updated by ``torch._fused_adam_`` or ``torch._fused_adamw_``."""

    steps: Tensor
    counts: Any
    """The memory of `steps` on a CPU, in which counting takes a tenth of the time; None on other devices."""
    lists: list[list[Tensor]]

    def __init__(self, group: dict[str, Any], state: Any, members: dict[int, Tensor]) -> None:
        super().__init__(group, state, members)
        self.kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
        device = next(iter(members.values())).device
        self.rounded = device if device.type == "cuda" else None
        """The device whose kernel reads a rounded rate."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, which prepares its lists again: memory cannot be copied."""
        return {**vars(self), "counts": None, "updated": None}

    def step(self, gradients: Gradients, skip: Tensor | None = None) -> bool:
        """Update as `torch.optim.Adam.step` does; return whether entries of the state were replaced."""
        selected = self.select(gradients)
        if not selected:
            return False
        is_new = self.parameters is not self.updated
        if is_new:
            self._prepare()
        group, counts = self.group, self.counts
        means, squares, steps = self.lists
        if counts is None:
            self.steps.add_(1)
        else:
            for number in range(len(selected)):
                counts[number] += 1.0
        beta1, beta2 = group["betas"]
        self.kernel(
            self.parameters,
            selected,
            means,
            squares,
            [],
            steps,
            amsgrad=False,
            lr=group["lr"] if self.rounded is None else round_rate(group["lr"], self.rounded),
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            found_inf=skip,
        )
        if skip is not None:
            self.steps.sub_(skip)
        return is_new

    def _prepare(self) -> None:
        """Build the lists. The step counters become views of one tensor, so one call counts."""
        states = [self.state[parameter] for parameter in self.parameters]
        for parameter, state in zip(self.parameters, states, strict=True):
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        self.steps = torch.stack([state["step"] for state in states])
        for state, steps in zip(states, self.steps.unbind(), strict=True):
            state["step"] = steps
        self.lists = [[state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step")]
        self.updated = self.parameters
        self.counts = self.steps.numpy().data if self.steps.is_cpu else None


class SgdLane(Lane):
    """A lane of stochastic gradient descent, updated by ``torch._fused_sgd_``.

    The velocity of a parameter starts at its first gradient, also if other parameters had theirs earlier;
    PyTorch's own fused optimizer raises an error in that case.
    """

    velocities: list[Tensor]
    """Those of the last update."""
    _skip: Tensor | None

    def step(self, gradients: Gradients, skip: Tensor | None = None) -> bool:
        """Update as `torch.optim.SGD.step` does; return whether entries of the state were created."""
        self._skip = skip
        selected, parameters = self.select(gradients), self.parameters
        if parameters is self.updated and bool(self.velocities) == (self.group["momentum"] != 0):
            self._launch(parameters, selected, self.velocities, first=False)
            return False
        continues = [*map(self._has_velocity, parameters)]
        if not all(continues) and skip is not None and skip.item():
            return False  # a velocity starts at the first gradient that is not skipped
        for first, chosen in ((True, [*map(not_, continues)]), (False, continues)):
            part = [*compress(parameters, chosen)]
            self._launch(part, [*compress(selected, chosen)], self._velocities(part), first=first)
        self.updated, self.velocities = parameters, self._velocities(parameters)
        return True

    def _has_velocity(self, parameter: Tensor) -> bool:
        return self.group["momentum"] == 0 or self.state[parameter].get("momentum_buffer") is not None

    def _velocities(self, parameters: list[Tensor]) -> list[Tensor]:
        if self.group["momentum"] == 0:
            return []
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.empty_like(parameter)
        return [state["momentum_buffer"] for state in states]

    def _launch(
        self, parameters: list[Tensor], gradients: list[Tensor], velocities: list[Tensor], *, first: bool
    ) -> None:
        if not parameters:
            return
        group = self.group
        torch._fused_sgd_(
            parameters,
            gradients,
            velocities,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=round_rate(group["lr"], parameters[0].device),
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=False,
            is_first_step=first,
            found_inf=self._skip,
        )


LANES: dict[type, type[Lane]] = {
    torch.optim.Adam: AdamLane,
    torch.optim.AdamW: AdamLane,
    torch.optim.SGD: SgdLane,
}


def build_lanes(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> list[Lane] | None:
    """Return the lanes of *optimizer*, or None if these kernels would not give the same bits as its own step.

    The members of a lane are stored under their index in *parameters*. Raises `StageError` if the installed
    PyTorch has other kernels than expected.
    """
    lane = LANES.get(type(optimizer))
    if lane is None or not all(map(_is_plain, optimizer.param_groups)):
        return None
    check()
    index_of = {parameter: index for index, parameter in enumerate(parameters)}
    lanes: list[Lane] = []
    for group in optimizer.param_groups:
        by_kind: dict[tuple[torch.device, torch.dtype], dict[int, Tensor]] = {}
        for parameter in group["params"]:
            if parameter in index_of:
                members = by_kind.setdefault((parameter.device, parameter.dtype), {})
                members[index_of[parameter]] = parameter
        lanes += [lane(group, optimizer.state, members) for members in by_kind.values()]
    return lanes


def round_rate(rate: Any, device: torch.device) -> Any:
    """Return the number *rate* as the kernels on *device* read it from a tensor. A tensor stays the same."""
    return rate if device.type != "cuda" or isinstance(rate, Tensor) else ctypes.c_float(rate).value


@contextmanager
def round_rates(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Round the rates of fused groups of *optimizer* for the block, in which its own ``step`` is called."""
    rates = {
        number: group["lr"]
        for number, group in enumerate(optimizer.param_groups)
        if group.get("fused") and group["params"] and group["params"][0].is_cuda
    }
    for number, rate in rates.items():
        group = optimizer.param_groups[number]
        group["lr"] = round_rate(rate, group["params"][0].device)
    try:
        yield
    finally:
        for number, rate in rates.items():
            optimizer.param_groups[number]["lr"] = rate


def _is_plain(group: dict[str, Any]) -> bool:
    if not group.get("fused") or any(group.get(option) for option in UNSUPPORTED):
        return False
    numbers = (group["lr"], *group.get("betas", ()))
    return not any(isinstance(number, Tensor) for number in numbers) and all(
        parameter.is_floating_point() for parameter in group["params"]
    )


def match_strides(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return *gradient* with the strides of *parameter*."""
    if gradient.is_sparse or gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient.detach())


def is_dense(parameter: Tensor) -> bool:
    """Return whether the elements of *parameter* are contiguous in memory, in any order of dimensions."""
    return torch.empty_like(parameter, device="meta").stride() == parameter.stride()


def is_skipped_by_sgd(parameter: Tensor) -> bool:
    """Return whether the fused kernel of SGD may leave *parameter* unchanged.

    On a CPU torch 2.13's kernel computes the vectorized elements of types below four bytes (bfloat16,
    float16) without storing them, so only the last few elements are trained. The kernels of Adam and AdamW
    store them.
    """
    return parameter.is_cpu and parameter.is_floating_point() and parameter.element_size() < FLOAT32_BYTES
