"""The share of samples, or positions, whose class is predicted."""

from stages.contracts.history import Direction
from stages.contracts.outputs import ClassificationOutput, SequenceOutput
from stages.metrics.labels import Labelled, likeliest, share
from stages.metrics.mean import Mean


class AccuracyMetric:
    """The share of targets whose class has the highest logit, in percent.

    One logit is a binary model: above 0 it predicts class 1. A target of -100 is not measured; of equal
    logits the first counts as the highest; a row with a NaN is never right. See `stages.metrics.labels`.
    """

    name = "Accuracy"
    unit = "%"
    better = Direction.HIGHEST
    measures = (ClassificationOutput, SequenceOutput)

    def __init__(self, *, pad_token: int | None = None) -> None:
        self.pad_token = pad_token
        """A target that is not measured either."""

    def measure(self, output: Labelled) -> Mean:
        """Return 100 for each hit, over all targets. Raises `BuilderError` if the shapes do not fit."""
        predicted, targets = likeliest(output, self.name)
        return share(predicted == targets, targets, self.pad_token)
