"""The loss, and errors between predicted numbers and their targets."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.history import Direction
from stages.contracts.outputs import Output, RegressionOutput, weight_of
from stages.metrics.class_targets import widen
from stages.metrics.state import Mean


class LossMetric:
    """The mean loss, in which each batch has the weight of its output.

    Burn gives every batch the same weight; here every sample or token has the same weight, so that the value
    does not depend on the batch size. See `stages.contracts.outputs`.
    """

    name = "Loss"
    unit = None
    better = Direction.LOWEST

    def measure(self, output: Output) -> Mean:
        """Return the mean loss of one batch.

        A batch of weight 0 counts nothing: its loss, a mean over no target, is not a number.
        """
        loss, weight = output.loss, weight_of(output)
        if type(weight) is int and weight and isinstance(loss, Tensor) and loss.is_cpu:  # most batches
            return Mean(loss.item() * weight, weight)
        return _weigh(loss, weight)


class ScalarMetric:
    """The mean of a number that the output of a step has, such as one term of its loss.

    Give the output a field for it, and name the field in ``fit.metrics``, as in
    ``{kind: scalar, field: loss_box}``. The value of a batch is the mean over its samples.

    Args:
        field: The name of the attribute of the output: a tensor of one number, or a number.
        name: The name in logs, curves and the summary. Default: *field*.
        weight: The name of the attribute with the divisor of the mean. Default: the weight of the output.
        better: ``lowest`` or ``highest``. Default: neither.
    """

    unit = None
    decimals = 4

    def __init__(
        self, field: str, *, name: str | None = None, weight: str | None = None, better: str | None = None
    ) -> None:
        self.name = name or field
        self.better = None if better is None else Direction(better)
        self._field = field
        self._weight = weight

    def measure(self, output: Any) -> Mean:
        """Return the number of one batch. Raises `BuilderError` if *output* does not have it."""
        value = self._read(output, self._field)
        weight = None if self._weight is None else self._read(output, self._weight)
        return measure_scalar(self.name, value, weight, output)

    def _read(self, output: Any, field: str) -> Any:
        try:
            return getattr(output, field)
        except AttributeError:
            raise BuilderError(
                f"metric {self.name!r}: {type(output).__name__} has no attribute {field!r}. Return an output "
                "that has it from train_step and valid_step, or log it in each of these steps"
            ) from None


def measure_scalar(name: str, value: "Tensor | float", weight: Any, output: Any) -> Mean:
    """Return the mean *value* of the metric *name* with *weight*; None for that of *output*.

    Raises `BuilderError` if *value* is not one number.
    """
    if isinstance(value, Tensor) and value.numel() != 1:
        raise BuilderError(
            f"metric {name!r}: the value must be one number; found shape {tuple(value.shape)}. Reduce it, "
            "for example with mean()"
        )
    scalar = value.reshape(()) if isinstance(value, Tensor) else value
    return _weigh(scalar, weight_of(output) if weight is None else weight)


def _weigh(value: "Tensor | float", weight: "Tensor | float") -> Mean:
    """Return the mean *value* of a batch with its *weight*, which may be on a device."""
    if not isinstance(value, Tensor):
        value = torch.tensor(value, dtype=torch.float64, device="cpu")
    if isinstance(weight, Tensor):
        mean = value.detach().to(weight.device)
        total = (mean if mean.device.type == "mps" else mean.double()) * weight
        return Mean.from_sum(total.where(weight != 0, 0.0), weight)
    return Mean.from_mean(value, weight)


class _ErrorMetric:
    """The mean of a function of the errors over all predicted numbers."""

    name: str
    unit = None
    decimals = 4
    better = Direction.LOWEST
    measures = RegressionOutput
    function: Callable[[Tensor], Tensor]

    def measure(self, output: RegressionOutput) -> Mean:
        """Return the error of one batch.

        Raises `BuilderError` if predictions and targets differ in shape: torch would broadcast (B,) and
        (B, 1) to (B, B) and average over every pair.
        """
        if output.output.shape != output.targets.shape:
            raise BuilderError(
                f"metric {self.name!r} compares numbers one by one, but the model's step returns predictions "
                f"{tuple(output.output.shape)} for targets {tuple(output.targets.shape)}: reshape one of them"
            )
        errors = widen(output.output.detach()) - output.targets
        return Mean.from_sum(self.function(errors).sum(), errors.numel())


class MaeMetric(_ErrorMetric):
    """The mean absolute error over all predicted numbers."""

    name = "MAE"
    function = staticmethod(torch.abs)


class MseMetric(_ErrorMetric):
    """The mean squared error over all predicted numbers."""

    name = "MSE"
    function = staticmethod(torch.square)
