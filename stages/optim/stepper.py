"""One step of an optimizer from gradients and a rate, by the shortest way that gives its bits."""

from collections.abc import Callable, Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from stages.contracts.errors import BuilderError
from stages.optim.clipped import clip
from stages.optim.clipping import ClipByGlobalNorm, ClipByNorm, ClipByValue
from stages.optim.fused import SELECTING, Lane, is_dense, is_skipped_by_sgd, lanes_of
from stages.optim.gradients import Gradients


class Stepper:
    """Updates the parameters of a model with *optimizer*, from gradients within *clipping*.

    A plain ``Adam(fused=True)``, ``AdamW(fused=True)`` or ``SGD(fused=True)`` is stepped by its kernel, to
    the same bits and in the same ``optimizer.state``; all others, and those with hooks, by their own step.

    It notices `load_state_dict`, `add_param_group`, a replaced ``optimizer.step``, changed options of a group
    (``amsgrad``, ``maximize`` …) and entries of ``optimizer.state`` that were replaced or removed.

    Several groups keep the proportions that their rates have here (``initial_lr`` where a group has one), so
    make the stepper before a checkpoint is loaded. Raises `BuilderError` for an optimizer that cannot work.
    """

    def __init__(
        self,
        model_parameters: Sequence[Tensor],
        optimizer: torch.optim.Optimizer,
        clipping: ClipByValue | ClipByNorm | ClipByGlobalNorm | None = None,
    ) -> None:
        self.parameters = list(model_parameters)
        self.optimizer = optimizer
        self.clipping = clipping
        self.needs_closure = isinstance(optimizer, torch.optim.LBFGS)
        """Whether only `step_with_closure` works, as the optimizer evaluates several times a step."""
        self._initial: list[float] = []
        self.refresh()

    def refresh(self) -> None:
        """Read the optimizer again: its step, its groups, their options, its state.

        State that came back from a record is row-major; it is laid out as its parameter.
        """
        groups = self.optimizer.param_groups
        for group in groups[len(self._initial) :]:
            self._initial.append(float(group.get("initial_lr", group["lr"])))
        _refuse_zero(self._initial)
        _refuse_gaps(groups)
        if isinstance(self.optimizer, torch.optim.SGD):
            _refuse_halves(groups)
        self._state, self._groups, self._known = self.optimizer.state, groups, len(groups)
        _lay_out(self._state)
        self._lanes: list[Lane] | None = None
        if not _is_overridden(self.optimizer):
            self._lanes = lanes_of(self.optimizer, self.parameters)
        self._own_step = vars(self.optimizer).get("step")
        names = [name for name in SELECTING if all(name in group for group in groups)]
        self._selected: Callable[[dict[str, Any]], Any] = itemgetter(*names) if names else len
        self._options = [*map(self._selected, groups)]
        self._entries = _entries_of(self._state)

    def step(self, gradients: Gradients, learning_rate: float | None) -> None:
        """Update with *gradients*, one or None for each parameter of the model.

        Without a *learning_rate* the groups keep theirs, as a scheduler of torch has set them. Where all of
        *gradients* are None nothing changes.
        """
        if all(gradient is None for gradient in gradients):
            return
        self._prepare(learning_rate)
        gradients = self._ready(gradients)
        if self._lanes is None or _is_hooked(self.optimizer):
            if self.needs_closure:
                raise BuilderError(
                    "L-BFGS evaluates a batch several times a step, and was given the gradients of one: "
                    "use it where step_with_closure is called, or another optimizer"
                )
            self._give(gradients)
            self.optimizer.step()
            self._take_back()
            return
        with torch.no_grad():
            for lane in self._lanes:
                if lane.step(gradients):
                    self._entries = _entries_of(self._state)
        # a scheduler of torch warns where nobody has called the optimizer
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001

    def step_with_closure(
        self, closure: Callable[[], tuple[Tensor, Gradients]], learning_rate: float | None
    ) -> float:
        """Update with an optimizer that evaluates several times a step, as L-BFGS does.

        *closure* returns the loss and its gradients at the current parameters. It must not add to ``.grad``,
        which holds the gradients of the previous evaluation; afterwards ``.grad`` is None.
        Return the first loss.
        """

        def evaluate() -> float:
            loss, gradients = closure()
            self._give(self._ready(gradients))
            return float(loss.detach())

        self._prepare(learning_rate)
        try:
            return float(self.optimizer.step(evaluate))
        finally:
            self._take_back()

    def _prepare(self, learning_rate: float | None) -> None:
        if self._is_changed():
            self.refresh()
        if learning_rate is None:
            return
        for group, initial in zip(self._groups, self._initial, strict=True):
            rate = learning_rate if self._known == 1 else learning_rate * (initial / self._initial[0])
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _is_changed(self) -> bool:
        """Return whether somebody else changed what the lanes depend on; takes about a microsecond."""
        optimizer = self.optimizer
        if optimizer.state is not self._state or optimizer.param_groups is not self._groups:
            return True
        if vars(optimizer).get("step") is not self._own_step or len(self._groups) != self._known:
            return True
        if [*map(self._selected, self._groups)] != self._options:
            return True
        if self._lanes is None:
            return False
        entries = _entries_of(self._state)
        return len(entries) != len(self._entries) or not all(map(is_, entries, self._entries))

    def _ready(self, gradients: Gradients) -> Gradients:
        """*gradients* clipped and laid out as their parameters: the fused kernels do not look at strides.

        What ``loss.backward()`` leaves in ``.grad`` has them; what `torch.autograd.grad` returns need not.
        """
        if self.clipping:
            gradients = clip(gradients, self.clipping)
        return [
            gradient
            if gradient is None or gradient.is_sparse or gradient.stride() == parameter.stride()
            else torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient.detach())
            for gradient, parameter in zip(gradients, self.parameters, strict=True)
        ]

    def _give(self, gradients: Gradients) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def _take_back(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def _is_overridden(optimizer: torch.optim.Optimizer) -> bool:
    """Whether somebody replaced the step of *optimizer*; torch's schedulers only count its calls."""
    step = vars(optimizer).get("step")
    return step is not None and getattr(step, "__wrapped__", None) is not type(optimizer).step


def _entries_of(state: Any) -> list[Any]:
    """Return all values in *state*, of one parameter after another."""
    return list(chain.from_iterable(map(dict.values, state.values())))


def _lay_out(state: Any) -> None:
    """Give every tensor that has the shape of its parameter the parameter's order in memory.

    The fused kernels walk both in a row, whatever their strides.
    """
    for parameter, kept in state.items():
        for key, value in kept.items():
            if _is_laid_out_otherwise(value, parameter):
                kept[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _is_laid_out_otherwise(value: Any, parameter: Tensor) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == parameter.layout == torch.strided
        and value.shape == parameter.shape
        and value.stride() != parameter.stride()
    )


def _is_hooked(optimizer: torch.optim.Optimizer) -> bool:
    return bool(
        optimizer._optimizer_step_pre_hooks  # noqa: SLF001  there is no public way to ask
        or optimizer._optimizer_step_post_hooks  # noqa: SLF001
        or torch_optimizer._global_optimizer_pre_hooks  # noqa: SLF001
        or torch_optimizer._global_optimizer_post_hooks  # noqa: SLF001
    )


def _refuse_zero(initial: list[float]) -> None:
    if len(initial) > 1 and initial[0] == 0:
        raise BuilderError(
            f"the optimizer's groups start with the learning rates {initial}: with 0 for the first, the "
            "others have no proportion to keep; give the first group a rate above 0, or freeze its parameters"
        )


def _refuse_gaps(groups: list[dict[str, Any]]) -> None:
    for group in groups:
        for parameter in group["params"] if group.get("fused") else ():
            if not is_dense(parameter):
                raise BuilderError(
                    f"a parameter of shape {tuple(parameter.shape)} has the strides {parameter.stride()}, "
                    "with gaps between its elements, and torch's fused optimizers write into them: store it "
                    "with .contiguous(), or build the optimizer with fused=False"
                )


def _refuse_halves(groups: list[dict[str, Any]]) -> None:
    for group in groups:
        for parameter in group["params"] if group.get("fused") else ():
            if is_skipped_by_sgd(parameter):
                raise BuilderError(
                    f"a parameter of shape {tuple(parameter.shape)} on a CPU is of {parameter.dtype}, which "
                    "torch's fused SGD hardly trains: build the optimizer with fused=False, or "
                    "keep the parameters in float32"
                )
