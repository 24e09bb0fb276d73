"""The step size, as a curve."""

from stages.contracts.events import Step
from stages.metrics.mean import Mean


class LearningRateMetric:
    """The learning rate of each step. It is measured in training only, as validation takes no steps."""

    name = "Learning Rate"
    unit = None
    train_only = True

    def measure_step(self, step: Step) -> Mean:
        """Of one step."""
        return Mean(step.learning_rate, 1)
