"""The share of samples, or tokens, that got the right class."""

from stages.contracts.history import Direction
from stages.contracts.outputs import ClassificationOutput, SequenceOutput
from stages.metrics.labels import Labelled, logits_of, share
from stages.metrics.mean import Mean


class AccuracyMetric:
    """The share of samples whose highest logit is their class, in per cent."""

    name = "Accuracy"
    unit = "%"
    better = Direction.HIGHEST
    measures = (ClassificationOutput, SequenceOutput)

    def __init__(self, *, pad_token: int | None = None) -> None:
        self.pad_token = pad_token
        """A target that is no sample at all: neither right nor wrong."""

    def measure(self, output: Labelled) -> Mean:
        """Of one batch: 100 for each hit, over its samples."""
        hits = logits_of(output).argmax(dim=-1) == output.targets
        return share(hits, output.targets, self.pad_token)
