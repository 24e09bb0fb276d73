"""The step size, as a curve."""

from stages.contracts.events import Step
from stages.metrics.mean import Mean


class LearningRateMetric:
    """The learning rate of each step; 0 on the valid split, where nothing is learned."""

    name = "Learning Rate"
    unit = None

    def measure_step(self, step: Step) -> Mean:
        """Of one step."""
        return Mean(step.learning_rate, 1)
