"""Optimizer steps from explicit gradients, through a fused kernel if it gives the same bits."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from stages.contracts.errors import BuilderError
from stages.contracts.fields import FastPath
from stages.optim.clipping import clip
from stages.optim.config import ClipByGlobalNorm, ClipByNorm, ClipByValue
from stages.optim.fused_kernels import (
    SELECTING,
    Lane,
    build_lanes,
    is_dense,
    is_skipped_by_sgd,
    match_strides,
    round_rates,
)
from stages.optim.gradients import Gradients

VARIABLE = ("params", "lr")
"""The entries of a group that are not constant options."""


class Stepper:
    """The updates of a model's parameters by *optimizer*, from gradients that *clipping* limits.

    A plain ``Adam(fused=True)``, ``AdamW(fused=True)`` or ``SGD(fused=True)`` is updated by its kernel, with
    the same bits and in the same ``optimizer.state``. All other optimizers, those with hooks, and all with
    *fast_path* ``off``, are updated by their own ``step``. On CUDA, the rates of fused optimizers are rounded
    to float32 in both cases, as a step in a CUDA graph reads them.

    The stepper adapts to `load_state_dict`, `add_param_group`, a replaced ``optimizer.step``, changed options
    of a group (``amsgrad``, ``maximize`` …) and entries of ``optimizer.state`` that were replaced or removed.
    It looks for changed options and entries before every update, or before one of *check_interval* updates.

    The learning rates of several groups keep the ratios that they have at construction (of ``initial_lr`` if
    a group has one), so create the stepper before a checkpoint is loaded. Raises `BuilderError` if the
    optimizer is not supported.
    """

    def __init__(
        self,
        model_parameters: Sequence[Tensor],
        optimizer: torch.optim.Optimizer,
        clipping: ClipByValue | ClipByNorm | ClipByGlobalNorm | None = None,
        *,
        fast_path: FastPath = "auto",
        check_interval: int = 1,
    ) -> None:
        self.parameters = list(model_parameters)
        self.optimizer = optimizer
        self.clipping = clipping
        self._fast_path = fast_path
        self._check_interval = check_interval
        self._unchecked = 0
        """The number of updates since options and entries were compared; -1 to compare them next."""
        self.needs_closure = isinstance(optimizer, torch.optim.LBFGS)
        """True if the optimizer evaluates the loss several times per step and needs `step_with_closure`."""
        self._initial: list[float] = []
        self.refresh()

    def refresh(self) -> None:
        """Read the step, the groups, their options and the state of the optimizer again.

        State that was loaded from a record is row-major; give it the memory layout of its parameter.
        """
        groups = self.optimizer.param_groups
        for group in groups[len(self._initial) :]:
            self._initial.append(float(group.get("initial_lr", group["lr"])))
        _check_initial_rates(self._initial)
        _check_parameters(groups, is_sgd=isinstance(self.optimizer, torch.optim.SGD))
        self._state, self._groups, self._group_count = self.optimizer.state, groups, len(groups)
        first = self._initial[0] or 1.0
        self._ratios = [(group, 1.0) for group in groups[:1]]
        self._ratios += [
            (group, initial / first) for group, initial in zip(groups[1:], self._initial[1:], strict=True)
        ]
        _match_layouts(self._state)
        self._lanes: list[Lane] | None = None
        if self._fast_path == "auto" and not _is_overridden(self.optimizer):
            self._lanes = build_lanes(self.optimizer, self.parameters)
        self._own_step = vars(self.optimizer).get("step")
        self._hooks = _hooks_of(self.optimizer)
        names = [name for name in SELECTING if all(name in group for group in groups)]
        self._get_options: Callable[[dict[str, Any]], Any] = itemgetter(*names) if names else len
        self._options = [*map(self._get_options, groups)]
        self._entries = _entries_of(self._state)

    @property
    def reads_flag(self) -> bool:
        """True if the kernel of the optimizer can skip an update by a flag on the device."""
        return self._lanes is not None and not any(self._hooks)

    def step(self, gradients: Gradients, learning_rate: float | None, skip: Tensor | None = None) -> None:
        """Update with *gradients*, which has a tensor or None for each parameter of the model.

        If *skip*, a scalar tensor, is 1, nothing is updated. If *learning_rate* is None, the groups keep the
        rates that a PyTorch scheduler has set. If all gradients are None, nothing changes.
        """
        for gradient in gradients:
            if gradient is not None:
                break
        else:
            return
        self._prepare(learning_rate)
        if self.clipping:
            gradients = clip(gradients, self.clipping)
        if self._lanes is None or any(self._hooks):
            self._step_itself(gradients, skip)
            return
        for lane in self._lanes:
            if lane.step(gradients, skip):
                self._entries = _entries_of(self._state)
        # a scheduler of torch warns if the optimizer was not called
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001

    def _step_itself(self, gradients: Gradients, skip: Tensor | None) -> None:
        """Update by the own ``step`` of the optimizer."""
        if self.needs_closure:
            raise BuilderError(
                "L-BFGS evaluates a batch several times per step, but received the gradients of one "
                "evaluation. Call step_with_closure, or use another optimizer"
            )
        if skip is not None and skip.item():
            return
        for part in self._separate(gradients):
            self._set_gradients(part)
            with round_rates(self.optimizer):
                self.optimizer.step()
        self._clear_gradients()

    def step_with_closure(
        self, closure: Callable[[], tuple[Tensor, Gradients]], learning_rate: float | None
    ) -> float:
        """Update with an optimizer that evaluates the loss several times per step, as L-BFGS does.

        *closure* returns the loss and its gradients at the current parameters. It must not add to ``.grad``,
        which holds the gradients of the previous evaluation; afterwards ``.grad`` is None. Return the first
        loss.
        """

        def evaluate() -> float:
            loss, gradients = closure()
            self._set_gradients(clip(gradients, self.clipping) if self.clipping else gradients)
            return float(loss.detach())

        self._prepare(learning_rate)
        try:
            return float(self.optimizer.step(evaluate))
        finally:
            self._clear_gradients()

    @property
    def rates(self) -> list[float]:
        """The rate of each group."""
        return [group["lr"] for group in self._groups]

    def set_rates(self, learning_rate: float | None) -> None:
        """Set the rate of each group, unless *learning_rate* is None."""
        if learning_rate is not None:
            for group, ratio in self._ratios:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(learning_rate * ratio)
                else:
                    group["lr"] = learning_rate * ratio

    @contextmanager
    def rates_from(self, rates: Sequence[Tensor]) -> Iterator[None]:
        """Use *rates*, a scalar on the device for each group, in the block, which a CUDA graph may record."""
        numbers = self.rates
        for group, rate in zip(self._groups, rates, strict=True):
            group["lr"] = rate
        try:
            yield
        finally:
            for group, number in zip(self._groups, numbers, strict=True):
                group["lr"] = number

    @property
    def constant_options(self) -> list[list[Any]]:
        """The options of each group except for its rate: the numbers that a CUDA graph of a step contains."""
        return [[value for name, value in group.items() if name not in VARIABLE] for group in self._groups]

    def _prepare(self, learning_rate: float | None) -> None:
        self._unchecked = (self._unchecked + 1) % self._check_interval
        has_changed = self._is_replaced() if self._unchecked else self.is_changed()
        if has_changed:
            self.refresh()
        self.set_rates(learning_rate)

    def check_next(self) -> None:
        """Look for changes before the next update."""
        self._unchecked = -1

    def is_changed(self) -> bool:
        """Return whether the optimizer was changed since `refresh`; takes about a microsecond."""
        if self._is_replaced() or [*map(self._get_options, self._groups)] != self._options:
            return True
        if self._lanes is None:
            return False
        entries = _entries_of(self._state)
        return len(entries) != len(self._entries) or not all(map(is_, entries, self._entries))

    def _is_replaced(self) -> bool:
        """Return whether the step, the state, the groups or their number were changed."""
        optimizer = self.optimizer
        return (
            optimizer.state is not self._state
            or optimizer.param_groups is not self._groups
            or len(self._groups) != self._group_count
            or optimizer.__dict__.get("step") is not self._own_step
        )

    def _separate(self, gradients: Gradients) -> list[Gradients]:
        """Return *gradients* in parts, one for each call of the optimizer's own ``step``.

        Torch's fused SGD fails if the velocities of some parameters start while others have theirs.
        """
        starting = {
            parameter
            for group in self._groups
            if group.get("fused") and group.get("momentum") and isinstance(self.optimizer, torch.optim.SGD)
            for parameter in group["params"]
            if self._state.get(parameter, {}).get("momentum_buffer") is None
        }
        if not starting:
            return [gradients]
        pairs = [*zip(self.parameters, gradients, strict=True)]
        first = [gradient if parameter in starting else None for parameter, gradient in pairs]
        others = [None if parameter in starting else gradient for parameter, gradient in pairs]
        return [part for part in (first, others) if any(gradient is not None for gradient in part)]

    def _set_gradients(self, gradients: Gradients) -> None:
        """Set ``.grad`` of each parameter, with its strides: torch too may use the kernels."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else match_strides(gradient, parameter)

    def _clear_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def _is_overridden(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the step of *optimizer* was replaced; a PyTorch scheduler only wraps it."""
    step = vars(optimizer).get("step")
    return step is not None and getattr(step, "__wrapped__", None) is not type(optimizer).step


def _entries_of(state: Any) -> list[Any]:
    """Return all values in *state*, parameter by parameter."""
    entries = [entry.values() for entry in state.values() if isinstance(entry, dict)]  # others are its own
    return [*chain.from_iterable(entries)]


def _match_layouts(state: Any) -> None:
    """Give each tensor in *state* that has the shape of its parameter the parameter's strides.

    The fused kernels read both in memory order and ignore strides.
    """
    for parameter, entries in state.items():
        for key, value in entries.items() if isinstance(parameter, Tensor) else ():
            has_its_shape = isinstance(value, Tensor) and value.shape == parameter.shape
            if has_its_shape and value.layout == parameter.layout == torch.strided:
                entries[key] = match_strides(value, parameter)


def _hooks_of(optimizer: torch.optim.Optimizer) -> tuple[dict[int, Any], ...]:
    """Return the hooks of the step of *optimizer*, dicts that change in place."""
    return (
        optimizer._optimizer_step_pre_hooks,  # noqa: SLF001  no public function lists the hooks
        optimizer._optimizer_step_post_hooks,  # noqa: SLF001
        torch_optimizer._global_optimizer_pre_hooks,  # noqa: SLF001
        torch_optimizer._global_optimizer_post_hooks,  # noqa: SLF001
    )


def _check_initial_rates(initial: list[float]) -> None:
    if len(initial) > 1 and initial[0] == 0:
        raise BuilderError(
            f"the optimizer's groups have the initial learning rates {initial}. The ratios of the others to "
            "a first rate of 0 are undefined. Set the first group's rate above 0, or freeze its parameters"
        )


def _check_parameters(groups: list[dict[str, Any]], *, is_sgd: bool) -> None:
    """Raise `BuilderError` for a parameter that an optimizer of torch would not update as it should."""
    for parameter in (parameter for group in groups for parameter in group["params"]):
        if parameter.requires_grad and _shares_elements(parameter):
            raise BuilderError(
                f"a parameter of shape {tuple(parameter.shape)} has the strides {parameter.stride()}, as "
                "expand() makes them: its elements share memory, so no optimizer can update them. Create it "
                "from tensor.clone(), or expand a smaller parameter in forward"
            )
    fused = [parameter for group in groups if group.get("fused") for parameter in group["params"]]
    for parameter in fused:
        if not is_dense(parameter):
            raise BuilderError(
                f"a parameter of shape {tuple(parameter.shape)} has the strides {parameter.stride()}, "
                "with gaps between its elements, into which torch's fused optimizers would write. Store "
                "it with .contiguous(), or build the optimizer with fused=False"
            )
        if is_sgd and is_skipped_by_sgd(parameter):
            raise BuilderError(
                f"a parameter of shape {tuple(parameter.shape)} on a CPU has the dtype "
                f"{parameter.dtype}, of which torch's fused SGD updates only a few elements. Build the "
                "optimizer with fused=False, or keep the parameters in float32"
            )


def _shares_elements(parameter: Tensor) -> bool:
    """Return whether elements of *parameter* share memory."""
    if parameter.layout != torch.strided:
        return False
    return any(
        size > 1 and not stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True)
    )
