"""The loss, and errors between predicted numbers and their targets."""

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
        weight = weight_of(output)
        if isinstance(weight, Tensor):
            loss = output.loss.detach()
            total = (loss if loss.device.type == "mps" else loss.double()) * weight
            return Mean.from_sum(total.where(weight != 0, 0.0), weight)
        return Mean.from_mean(output.loss, weight)


class MaeMetric:
    """The mean absolute error over all predicted numbers."""

    name = "MAE"
    unit = None
    decimals = 4
    better = Direction.LOWEST
    measures = RegressionOutput

    def measure(self, output: RegressionOutput) -> Mean:
        """Return the error of one batch. Raises `BuilderError` if predictions and targets differ in shape."""
        errors = _errors(output, self.name)
        return Mean.from_sum(errors.abs().sum(), errors.numel())


class MseMetric:
    """The mean squared error over all predicted numbers."""

    name = "MSE"
    unit = None
    decimals = 4
    better = Direction.LOWEST
    measures = RegressionOutput

    def measure(self, output: RegressionOutput) -> Mean:
        """Return the error of one batch. Raises `BuilderError` if predictions and targets differ in shape."""
        errors = _errors(output, self.name)
        return Mean.from_sum(errors.square().sum(), errors.numel())


def _errors(output: RegressionOutput, name: str) -> Tensor:
    """Return predictions minus targets, in float32 or wider.

    Raises `BuilderError` if their shapes differ: torch would broadcast (B,) and (B, 1) to (B, B) and average
    over every pair.
    """
    if output.output.shape != output.targets.shape:
        raise BuilderError(
            f"metric {name!r} compares numbers one by one, but the model's step returns predictions "
            f"{tuple(output.output.shape)} for targets {tuple(output.targets.shape)}: reshape one of them"
        )
    return widen(output.output.detach()) - output.targets
