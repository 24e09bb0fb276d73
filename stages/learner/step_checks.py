"""Checks of the return values of a model's steps, with errors that name the step and its line."""

import operator
from typing import Any

import torch
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.outputs import TrainOutput
from stages.contracts.user_code import place_of

RETURN = (
    "return TrainOutput(self, backward(self, loss), item), where item has loss and size, such as "
    "ClassificationOutput(loss, logits, targets)"
)
ITEM = (
    "return an item that has loss and size, such as ClassificationOutput(loss, logits, targets), or a "
    "dataclass of your own with a property size, the number of samples in the batch"
)
SPARSE = "Create the layer with sparse=False, or use adagrad without weight decay"


class StepChecks:
    """Checks of the steps of *model*, whose gradients update it through *optimizer*.

    Each method raises `BuilderError`, which names the step with its file and line.
    """

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer | None = None) -> None:
        self._model = model
        self._optimizer = None if hasattr(model, "optimize") else optimizer
        self._parameters = dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else {}
        self._has_checked_gradients = False

    def check_train_step(self, step: Any) -> TrainOutput[Any]:
        """Return *step* if it is valid. The number of gradients is checked each time, their shapes once."""
        if type(step) is not TrainOutput:
            self._check_kind(step)
        gradients = step.gradients
        if not isinstance(gradients, list | tuple) or len(gradients) != len(self._parameters):
            raise self._error("train_step", self._count_of(gradients))
        loss = getattr(step.item, "loss", None)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            self._check_loss(step.item, loss)
        self._check_size("train_step", step.item)
        if not self._has_checked_gradients:
            self._check_gradients(gradients)
            self._has_checked_gradients = True
        checked: TrainOutput[Any] = step
        return checked

    def check_valid_step(self, item: Any) -> Any:
        """Return *item* if it is valid as the output of a validation step."""
        self._check_size("valid_step", item)
        return item

    def _check_kind(self, step: Any) -> None:
        if not (hasattr(step, "gradients") and hasattr(step, "item")):
            raise self._error("train_step", f"returned {_describe(step)}: {RETURN}")

    def _count_of(self, gradients: Any) -> str:
        if not isinstance(gradients, list | tuple):
            return (
                f"returned {_describe(gradients)} as gradients; it must be a list: use backward(self, loss)"
            )
        return (
            f"returned {len(gradients)} gradients for {len(self._parameters)} parameters: return one for "
            "each of self.parameters(), in that order, None for a frozen one, as backward(self, loss) does"
        )

    def _check_loss(self, item: Any, loss: Any) -> None:
        if loss is None:
            raise self._error("train_step", f"returned {_describe(item)} without a loss as item: {ITEM}")
        if not isinstance(loss, Tensor):
            raise self._error("train_step", f"returned {_describe(loss)} as loss, which must be a tensor")
        raise self._error(
            "train_step", f"returned a loss of shape {tuple(loss.shape)}: reduce it, for example loss.mean()"
        )

    def _check_size(self, step: str, item: Any) -> None:
        try:
            size = item.size
        except Exception as error:
            if not hasattr(type(item), "size"):
                raise self._error(step, f"returned {_describe(item)} without a size: {ITEM}") from None
            raise self._error(
                step, f"returned {_describe(item)}, whose size cannot be read: {error}. {ITEM}"
            ) from error
        if type(size) is int and size >= 0:
            return
        if isinstance(item, Tensor | dict):
            raise self._error(step, f"returned {_describe(item)}: {ITEM}")
        if callable(size):
            raise self._error(
                step, f"returned {_describe(item)}, whose size is a method: make it a @property"
            )
        if isinstance(size, bool) or not _is_count(size):
            raise self._error(
                step, f"returned {_describe(item)}, whose size is {size!r}: return the number of samples"
            )

    def _check_gradients(self, gradients: Any) -> None:
        for (name, parameter), gradient in zip(self._parameters.items(), gradients, strict=True):
            if gradient is None:
                continue
            if not isinstance(gradient, Tensor):
                raise self._error("train_step", f"returned {_describe(gradient)} as gradient of {name}")
            if gradient.shape != parameter.shape:
                raise self._error(
                    "train_step",
                    f"returned a gradient of shape {tuple(gradient.shape)} for {name}, which has shape "
                    f"{tuple(parameter.shape)}: return the gradients in the order of self.parameters()",
                )
            if gradient.layout != torch.strided and not takes_sparse(self._optimizer):
                raise BuilderError(
                    f"the gradient of {name} is sparse, which {type(self._optimizer).__name__} with its "
                    f"options does not support. {SPARSE}"
                )

    def _error(self, step: str, problem: str) -> BuilderError:
        return BuilderError(f"{step_name(self._model, step)} {problem}")


def step_name(model: Any, step: str) -> str:
    """Return ``Class.step (file, line N)``; the line is that of the class if the step is a mixin's."""
    place = place_of(getattr(model, step)) or place_of(type(model))
    return f"{type(model).__name__}.{step}{place}"


def takes_sparse(optimizer: torch.optim.Optimizer | None) -> bool:
    """Return whether *optimizer* supports sparse gradients and a checkpoint can hold its state.

    An optimizer from outside torch is assumed to.
    """
    if isinstance(optimizer, torch.optim.SGD):
        return not any(g["fused"] or g["momentum"] or g["weight_decay"] for g in optimizer.param_groups)
    if isinstance(optimizer, torch.optim.Adagrad):
        return not any(g["fused"] or g["weight_decay"] for g in optimizer.param_groups)
    if optimizer is None or isinstance(optimizer, torch.optim.SparseAdam | torch.optim.LBFGS):
        return True
    return not type(optimizer).__module__.startswith(("torch.optim", "stages."))


def _is_count(size: Any) -> bool:
    try:
        return operator.index(size) >= 0
    except (TypeError, ValueError):
        return False


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    article = "an" if name[:1] in "AEIOUaeiou" else "a"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, dict):
        return f"{article} {name} with the keys {', '.join(map(repr, list(value)[:8])) or '(none)'}"
    return f"{article} {name}"
