"""Optimizers of Burn that PyTorch lacks, or that differ from PyTorch's.

``burn_form`` is Burn's state of a parameter, with the name of an entry in the place of each value.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

STEP = "step"
Options = Mapping[str, Any]
"""The options of a group of parameters."""
State = Mapping[str, Tensor]
"""The counter and the tensors of a parameter."""


def evaluate(closure: Any) -> Any:
    """Return the loss of *closure*, computed with gradients; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def is_sharded(parameter: Tensor) -> bool:
    """Return whether each rank has a part of *parameter*; the class of such a tensor is slow to import."""
    return hasattr(parameter, "device_mesh")


def _list_trained(optimizer: torch.optim.Optimizer) -> list[tuple[dict[str, Any], Tensor]]:
    """Return each parameter of *optimizer* that has a gradient, with its group."""
    groups = optimizer.param_groups
    return [(group, one) for group in groups for one in group["params"] if one.grad is not None]


class PerParameterOptimizer(torch.optim.Optimizer):
    """An optimizer whose state of a parameter is a counter and tensors of its shape, all 0 at the start."""

    entries: ClassVar[tuple[str, ...]]
    """The names of the tensors."""
    burn_form: ClassVar[Mapping[str, Any]]
    counts: ClassVar[bool] = True
    """False if the state has no counter."""

    def __init__(self, params: Any, lr: float, **options: Any) -> None:
        super().__init__(params, {"lr": lr, **options})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update each parameter that has a gradient, and return the loss of *closure*."""
        loss = evaluate(closure)
        for group, parameter in _list_trained(self):
            self._step(group, parameter)
        return loss

    def _step(self, group: Options, parameter: Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state.update({name: torch.zeros_like(parameter) for name in self.entries})
            state |= {STEP: torch.zeros((), dtype=torch.float32, device="cpu")} if self.counts else {}
        if self.counts:
            state[STEP] += 1
        gradient: Any = parameter.grad
        self.update(group, parameter, gradient, state)

    def update(self, group: Options, parameter: Tensor, gradient: Tensor, state: State) -> None:
        """Update *parameter* and the tensors of its *state*, whose counter is already that of this step."""
        raise NotImplementedError


class Adan(PerParameterOptimizer):
    """Adan, with a momentum of the difference of gradients. Xie et al., 2022."""

    entries = ("exp_avg", "exp_avg_sq", "exp_avg_diff", "neg_pre_grad")
    burn_form: ClassVar = {"momentum": {"time": STEP, **{name: name for name in entries}}}

    def update(self, group: Options, parameter: Tensor, gradient: Tensor, state: State) -> None:
        """Update *parameter*; its first step has no difference of gradients."""
        steps, (beta_1, beta_2, beta_3) = float(state[STEP]), group["betas"]
        difference = state["neg_pre_grad"] + gradient if steps > 1 else torch.zeros_like(gradient)
        state["exp_avg"].lerp_(gradient, 1 - beta_1)
        state["exp_avg_diff"].lerp_(difference, 1 - beta_2)
        state["exp_avg_sq"].lerp_((gradient + beta_2 * difference).square(), 1 - beta_3)
        state["neg_pre_grad"].copy_(-gradient)
        spread = state["exp_avg_sq"].div(1 - beta_3**steps).sqrt_().add_(group["eps"])
        change = state["exp_avg"] / (1 - beta_1**steps)
        change += state["exp_avg_diff"] * (beta_2 / (1 - beta_2**steps))
        decay = group["lr"] * group["weight_decay"]
        if group["no_prox"]:
            parameter.mul_(1 - decay)
        parameter.addcdiv_(change, spread, value=-group["lr"])
        if not group["no_prox"]:
            parameter.div_(1 + decay)


class Lion(PerParameterOptimizer):
    """Lion, whose update is the sign of a momentum. Chen et al., 2023."""

    counts = False
    entries = ("exp_avg",)
    burn_form: ClassVar = {"momentum": "exp_avg"}

    def update(self, group: Options, parameter: Tensor, gradient: Tensor, state: State) -> None:
        """Update *parameter*."""
        beta_1, beta_2 = group["betas"]
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(state["exp_avg"].lerp(gradient, 1 - beta_1).sign_(), alpha=-group["lr"])
        state["exp_avg"].lerp_(gradient, 1 - beta_2)


class Lamb(PerParameterOptimizer):
    """LAMB: Adam whose update has the norm of its parameter. You et al., 2019."""

    entries = ("exp_avg", "exp_avg_sq")
    burn_form: ClassVar = {"time": STEP, "moment_1": "exp_avg", "moment_2": "exp_avg_sq"}

    def update(self, group: Options, parameter: Tensor, gradient: Tensor, state: State) -> None:
        """Update *parameter*; the ratio of norms is 1 if one of them is 0."""
        steps, (beta_1, beta_2) = float(state[STEP]), group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - beta_1)
        state["exp_avg_sq"].lerp_(gradient.square(), 1 - beta_2)
        spread = state["exp_avg_sq"].div(1 - beta_2**steps).sqrt_().add_(group["eps"])
        change = state["exp_avg"].div(1 - beta_1**steps).div_(spread)
        change.add_(parameter, alpha=group["weight_decay"])
        if group["use_trust_ratio"]:
            ratio = parameter.norm() / change.norm()
            change *= torch.where((ratio > 0) & ratio.isfinite(), ratio, torch.ones_like(ratio))
        parameter.sub_(change, alpha=group["lr"])


class CautiousAdamW(torch.optim.AdamW):
    """AdamW that decays the elements only whose sign is that of the mean gradient. Chen et al., 2025.

    Each group has ``cautious_weight_decay`` for that decay; ``weight_decay`` applies to all elements.
    """

    def step(self, closure: Any = None) -> Any:
        """Decay the parameters, and step as AdamW."""
        loss = evaluate(closure)
        for group, parameter in _list_trained(self):
            self._decay(group, parameter)
        super().step()
        return loss

    @torch.no_grad()
    def _decay(self, group: Options, parameter: Tensor) -> None:
        mean = self.state[parameter].get("exp_avg", torch.zeros_like(parameter))
        mean = mean.lerp(parameter.grad, 1 - group["betas"][0])
        is_same = (parameter >= 0) == (mean >= 0)
        parameter.sub_(parameter * is_same, alpha=group["lr"] * group["cautious_weight_decay"])


class MuonOfBurn(torch.optim.Muon):
    """Muon whose factor of the learning rate is that of Burn's axes, in which a Linear is [in, out].

    A group has ``dampening``, the fraction of each gradient after the first that the buffer lacks.
    """

    transposed: Sequence[Tensor] = ()
    """The matrices whose axes are in another order than Burn's."""

    def __init__(self, params: Any, *, dampening: float = 0.0, **options: Any) -> None:
        super().__init__(params, **options)
        values = [group.pop("dampening", dampening) for group in self.param_groups]
        for group, value in zip(self.param_groups, values, strict=True):
            if any(values):
                group["dampening"] = value

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has; that of torch would lack the matrices."""
        return {**super().__getstate__(), "transposed": self.transposed}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Step; a sharded matrix with fewer rows than ranks is updated as a whole on each of them."""
        self._gathered: list[tuple[Any, Any]] = []  # shards that torch cannot update, and the whole of each
        loss = super().step(closure)  # type: ignore[no-untyped-call]
        for shard, whole in self._gathered:
            rank = shard.device_mesh.get_local_rank()
            shard.to_local().copy_(whole[rank : rank + 1])  # of fewer rows than ranks, each has one or none
        self._gathered.clear()
        return loss

    def _init_group(self, group: Any, params: Any, grads: Any, buffers: Any) -> bool:
        old = {id(parameter) for parameter in group["params"] if self.state.get(parameter)}
        result = super()._init_group(group, params, grads, buffers)
        momentum, dampening = group["momentum"], group.get("dampening", 0.0)
        for parameter, gradient, buffer in zip(params, grads, buffers, strict=True):
            if dampening and momentum and id(parameter) in old:  # torch adds the rest of the gradient next
                buffer.sub_(gradient, alpha=(1 - momentum) * dampening / momentum)
        for index, parameter in enumerate(params):
            tensors = parameter, grads[index], buffers[index]
            if is_sharded(parameter) and len(parameter) < parameter.device_mesh.size():
                tensors = self._gather(tensors)
            if any(parameter is matrix for matrix in self.transposed):
                tensors = tuple(tensor.t() for tensor in tensors)
            params[index], grads[index], buffers[index] = tensors
        return result

    def _gather(self, shards: Sequence[Any]) -> tuple[Any, ...]:
        """Return the whole of each of *shards*: a parameter, its gradient and its buffer."""
        wholes = tuple(shard.full_tensor() for shard in shards)
        self._gathered += zip(shards, wholes, strict=True)
        return wholes
