"""The share of samples that got the right class."""

from stages.contracts.outputs import ClassificationOutput
from stages.metrics.mean import Mean


class AccuracyMetric:
    """The share of samples whose highest logit is their class, in per cent."""

    name = "Accuracy"
    unit = "%"
    measures = ClassificationOutput

    def measure(self, output: ClassificationOutput) -> Mean:
        """Of one batch: 100 for each hit, over its samples."""
        hits = (output.output.argmax(dim=-1) == output.targets).sum()
        return Mean(100.0 * float(hits), output.size)
