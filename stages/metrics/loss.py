"""The loss itself."""

from stages.contracts.history import Direction
from stages.contracts.outputs import Output
from stages.metrics.mean import Mean


class LossMetric:
    """The mean loss over samples.

    Burn weighs every batch the same, whatever its size; here a sample weighs what a sample weighs.
    """

    name = "Loss"
    unit = None
    better = Direction.LOWEST

    def measure(self, output: Output) -> Mean:
        """The batch's mean loss, for as many samples as it has."""
        return Mean.of(output.loss, output.size)
