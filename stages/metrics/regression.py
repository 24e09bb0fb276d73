"""How far numbers are from what they should be."""

import torch
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.history import Direction
from stages.contracts.outputs import RegressionOutput
from stages.metrics.mean import Mean


class MaeMetric:
    """The mean absolute error over all predicted numbers."""

    name = "MAE"
    unit = None
    decimals = 4
    better = Direction.LOWEST
    measures = RegressionOutput

    def measure(self, output: RegressionOutput) -> Mean:
        """Of one batch. Raises `BuilderError` where predictions and targets differ in shape."""
        errors = _errors(output, self.name)
        return Mean.sum(errors.abs().sum(), errors.numel())


class MseMetric:
    """The mean squared error over all predicted numbers."""

    name = "MSE"
    unit = None
    decimals = 4
    better = Direction.LOWEST
    measures = RegressionOutput

    def measure(self, output: RegressionOutput) -> Mean:
        """Of one batch. Raises `BuilderError` where predictions and targets differ in shape."""
        errors = _errors(output, self.name)
        return Mean.sum(errors.square().sum(), errors.numel())


def _errors(output: RegressionOutput, name: str) -> Tensor:
    """Torch would stretch (B,) and (B, 1) to (B, B) and average over every pair."""
    if output.output.shape != output.targets.shape:
        raise BuilderError(
            f"metric {name!r} compares number with number, and the model's step gives predictions "
            f"{tuple(output.output.shape)} for targets {tuple(output.targets.shape)}: reshape one of them"
        )
    wide = torch.promote_types(output.output.dtype, torch.float32)
    return output.output.detach().to(wide) - output.targets
