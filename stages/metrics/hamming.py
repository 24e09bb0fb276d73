"""The share of labels that are right, each by itself."""

from stages.contracts.history import Direction
from stages.contracts.outputs import MultiLabelClassificationOutput
from stages.contracts.text import number
from stages.metrics.labels import check_labels
from stages.metrics.mean import Mean


class HammingScore:
    """The share of (sample, label) pairs told right, in per cent.

    Burn compares the output as it is with the threshold unless told otherwise; here the output is logits,
    so ``sigmoid`` is on. Turn it off for a model that gives probabilities.
    """

    unit = "%"
    better = Direction.HIGHEST
    measures = MultiLabelClassificationOutput

    def __init__(self, *, threshold: float = 0.5, sigmoid: bool = True) -> None:
        self.name = f"Hamming Score @ Threshold({number(threshold)})"
        self.threshold = threshold
        """What a probability must exceed for its label to be given."""
        self.sigmoid = sigmoid

    def measure(self, output: MultiLabelClassificationOutput) -> Mean:
        """Return 100 for each right pair, over all pairs. Raises `BuilderError` if the shapes differ."""
        check_labels(output, self.name)
        scores = output.output.detach().sigmoid() if self.sigmoid else output.output
        right = (scores > self.threshold) == output.targets.bool()
        return Mean.sum(right.sum(), right.numel(), 100.0)
