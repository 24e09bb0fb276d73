"""torch's fused kernels without torch.optim around them: the same bits in the same state, sooner.

A lane is the parameters of one group on one device in one dtype: what one call of a kernel takes. Its lists
stay from step to step for as long as the same parameters have gradients.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from stages.optim.gradients import SINGLE_BYTES, Gradients

NEVER = ("amsgrad", "maximize", "capturable", "differentiable")
SELECTING = (*NEVER, "fused", "foreach", "decoupled_weight_decay")
"""Options that select the kernel; all others are read at each step."""


class Lane(Protocol):
    """The parameters that one call of a kernel updates."""

    def step(self, gradients: Gradients) -> bool:
        """Update the parameters that have a gradient, at the rate of their group.

        Return whether entries of the state were created or replaced.
        """


class AdamLane:
    """Adam and AdamW, by ``torch._fused_adam_`` and ``torch._fused_adamw_``."""

    def __init__(self, group: dict[str, Any], state: Any, members: dict[int, Tensor]) -> None:
        self.group = group
        self.state = state
        self.members = members
        self.kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
        self.kept: list[int] = []
        self.ages = torch.empty(0)
        self.lists: list[list[Tensor]] = []

    def step(self, gradients: Gradients) -> bool:
        """Step as `torch.optim.Adam.step` does; return whether entries of the state were replaced."""
        present = [index for index in self.members if gradients[index] is not None]
        if not present:
            return False
        is_new = present != self.kept
        if is_new:
            self._keep(present)
        group = self.group
        parameters, means, squares, steps = self.lists
        self.ages.add_(1)
        self.kernel(
            parameters,
            [gradients[index] for index in present],  # type: ignore[misc]  # present: those that are no None
            means,
            squares,
            [],
            steps,
            amsgrad=False,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        return is_new

    def _keep(self, present: list[int]) -> None:
        """Get the lists ready for *present*. Their counters become views of one tensor: one call counts."""
        parameters = [self.members[index] for index in present]
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        self.ages = torch.stack([state["step"] for state in states])
        for state, age in zip(states, self.ages.unbind(), strict=True):
            state["step"] = age
        kept = [[state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step")]
        self.kept, self.lists = present, [parameters, *kept]


class SgdLane:
    """Stochastic gradient descent, by ``torch._fused_sgd_``.

    A parameter that gets its first gradient later than others starts its velocity then, where torch's own
    fused form fails.
    """

    def __init__(self, group: dict[str, Any], state: Any, members: dict[int, Tensor]) -> None:
        self.group = group
        self.state = state
        self.members = members
        self.kept: list[int] = []
        self.parameters: list[Tensor] = []
        self.velocities: list[Tensor] = []

    def step(self, gradients: Gradients) -> bool:
        """Step as `torch.optim.SGD.step` does; return whether entries of the state were created."""
        present = [index for index in self.members if gradients[index] is not None]
        if present == self.kept and bool(self.velocities) == (self.group["momentum"] != 0):
            given: Any = [gradients[index] for index in present]
            self._launch(self.parameters, given, self.velocities, first=False)
            return False
        fresh = [index for index in present if not self._has_velocity(index)]
        for some in (fresh, [index for index in present if index not in fresh]):
            given = [gradients[index] for index in some]
            parameters = [self.members[index] for index in some]
            self._launch(parameters, given, self._velocities(parameters), first=some is fresh)
        self.kept, self.parameters = present, [self.members[index] for index in present]
        self.velocities = self._velocities(self.parameters)
        return True

    def _has_velocity(self, index: int) -> bool:
        if self.group["momentum"] == 0:
            return True
        return self.state[self.members[index]].get("momentum_buffer") is not None

    def _velocities(self, parameters: list[Tensor]) -> list[Tensor]:
        if self.group["momentum"] == 0:
            return []
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.empty_like(parameter)
        return [state["momentum_buffer"] for state in states]

    def _launch(
        self, parameters: list[Tensor], given: list[Tensor], velocities: list[Tensor], *, first: bool
    ) -> None:
        if not parameters:
            return
        group = self.group
        torch._fused_sgd_(
            parameters,
            given,
            velocities,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=False,
            is_first_step=first,
        )


KERNELS: dict[type, tuple[type[AdamLane] | type[SgdLane], str]] = {
    torch.optim.Adam: (AdamLane, "_fused_adam_"),
    torch.optim.AdamW: (AdamLane, "_fused_adamw_"),
    torch.optim.SGD: (SgdLane, "_fused_sgd_"),
}


def lanes_of(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> list[Lane] | None:
    """The lanes of *optimizer*, or None where it is not one that these kernels update to the same bits.

    The members of a lane stand under their index in *parameters*.
    """
    lane, kernel = KERNELS.get(type(optimizer), (None, ""))
    if lane is None or not hasattr(torch, kernel) or not all(map(_is_plain, optimizer.param_groups)):
        return None
    index_of = {parameter: index for index, parameter in enumerate(parameters)}
    lanes: list[Lane] = []
    for group in optimizer.param_groups:
        alike: dict[tuple[torch.device, torch.dtype], dict[int, Tensor]] = {}
        for parameter in group["params"]:
            if parameter in index_of:
                members = alike.setdefault((parameter.device, parameter.dtype), {})
                members[index_of[parameter]] = parameter
        lanes += [lane(group, optimizer.state, members) for members in alike.values()]
    return lanes


def _is_plain(group: dict[str, Any]) -> bool:
    if not group.get("fused") or any(group.get(option) for option in NEVER):
        return False
    numbers = (group["lr"], *group.get("betas", ()))
    return not any(isinstance(number, Tensor) for number in numbers) and all(
        parameter.is_floating_point() for parameter in group["params"]
    )


def is_dense(parameter: Tensor) -> bool:
    """Whether the elements of *parameter* lie side by side in memory, in whatever order of dimensions."""
    return torch.empty_like(parameter, device="meta").stride() == parameter.stride()


def is_skipped_by_sgd(parameter: Tensor) -> bool:
    """Return whether the fused kernel of SGD may leave *parameter* as it is.

    On a CPU torch 2.13's kernel computes the vectorized elements of types below four bytes (bfloat16,
    float16) without storing them; only the last few elements are trained. Adam's and AdamW's do store them.
    """
    return parameter.is_cpu and parameter.is_floating_point() and parameter.element_size() < SINGLE_BYTES
