"""The share of samples, or positions, whose class is among the likeliest."""

from stages.contracts.errors import BuilderError
from stages.contracts.history import Direction
from stages.contracts.outputs import ClassificationOutput, SequenceOutput
from stages.metrics.labels import Labelled, labelled, likeliest, share, top
from stages.metrics.mean import Mean


class TopKAccuracyMetric:
    """The share of targets whose class is among the *k* highest logits, in percent.

    Shapes, ties, NaN and ignored targets are those of `AccuracyMetric`, which a *k* of 1 equals.
    """

    unit = "%"
    better = Direction.HIGHEST
    measures = (ClassificationOutput, SequenceOutput)

    def __init__(self, k: int, *, pad_token: int | None = None) -> None:
        if k < 1:
            raise BuilderError(f"top-k accuracy takes a k of 1 or more, not {k}")
        self.name = f"Top-K Accuracy @ TopK({k})"
        self.k = k
        self.pad_token = pad_token
        """A target that is not measured either."""

    def measure(self, output: Labelled) -> Mean:
        """Return 100 for each hit, over all targets.

        Raises `BuilderError` if the shapes do not fit or there are fewer than *k* classes.
        """
        if self.k == 1:
            predicted, targets = likeliest(output, self.name)
            return share(predicted == targets, targets, self.pad_token)
        logits, targets, dim = labelled(output, self.name)
        classes = 1 if dim is None else logits.shape[dim]
        if dim is None or self.k > classes:
            raise BuilderError(f"metric {self.name!r} has a k of {self.k}, and the model {classes} classes")
        index = targets.long().clamp(0, classes - 1).unsqueeze(dim)
        is_class = (targets >= 0) & (targets < classes)
        hits = top(logits, self.k, dim).gather(dim, index).squeeze(dim) & is_class
        return share(hits, targets, self.pad_token)
