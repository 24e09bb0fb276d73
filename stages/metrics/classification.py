"""Metrics that count correct predictions: accuracy, top-k accuracy and the Hamming score."""

from stages.contracts.errors import BuilderError
from stages.contracts.history import Direction
from stages.contracts.outputs import ClassificationOutput, MultiLabelClassificationOutput, SequenceOutput
from stages.contracts.text import number
from stages.metrics.class_targets import (
    ClassCollector,
    SingleLabelOutput,
    check_label_shapes,
    compute_accuracy,
    compute_hit_rate,
    split_output,
    top_k_mask,
    widen,
)
from stages.metrics.state import Mean


class AccuracyMetric:
    """The fraction of targets whose class has the highest logit, in percent.

    One logit is a binary model: above 0 it predicts class 1. A target of -100 is not counted; of equal
    logits the first counts as the highest; a row that contains NaN is never correct. See
    `stages.metrics.class_targets` for the shapes.

    Args:
        pad_token: another target that is not counted; None for none.
    """

    name = "Accuracy"
    unit = "%"
    better = Direction.HIGHEST
    measures = (ClassificationOutput, SequenceOutput)

    def __init__(self, *, pad_token: int | None = None) -> None:
        self.pad_token = pad_token

    def measure(self, output: SingleLabelOutput) -> Mean:
        """Return the accuracy of one batch. Raises `BuilderError` if the shapes do not match."""
        return compute_accuracy(output, self.name, self.pad_token)

    def build_collector(self) -> ClassCollector | None:
        """Return a collector that has the values of `measure`; None if a subclass has other ones."""
        is_overridden = type(self).measure is not AccuracyMetric.measure
        return None if is_overridden else ClassCollector(self.measure, self.pad_token)


class TopKAccuracyMetric:
    """The fraction of targets whose class is among the *k* highest logits, in percent.

    Shapes, ties, NaN and ignored targets are handled as in `AccuracyMetric`, which equals a *k* of 1.

    Args:
        k: the number of classes that are predicted, 1 or more.
        pad_token: another target that is not counted; None for none.

    Raises `BuilderError` if *k* is below 1.
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

    def measure(self, output: SingleLabelOutput) -> Mean:
        """Return the top-k accuracy of one batch.

        Raises `BuilderError` if the shapes do not match or there are fewer than *k* classes.
        """
        if self.k == 1:
            return compute_accuracy(output, self.name, self.pad_token)
        logits, targets, dim = split_output(output, self.name)
        classes = 1 if dim is None else logits.shape[dim]
        if dim is None or self.k > classes:
            raise BuilderError(
                f"metric {self.name!r} has a k of {self.k}, but the model has {classes} classes: "
                f"set k to {classes} or less"
            )
        index = targets.long().clamp(0, classes - 1).unsqueeze(dim)
        is_class = (targets >= 0) & (targets < classes)
        hits = top_k_mask(logits, self.k, dim).gather(dim, index).squeeze(dim) & is_class
        return compute_hit_rate(hits, targets, self.pad_token)


class HammingScore:
    """The fraction of (sample, label) pairs that are predicted correctly, in percent.

    Args:
        threshold: a label is predicted if its probability exceeds this.
        sigmoid: whether the model's output is logits. Set it to False for a model that returns
            probabilities. Burn's default is False.
    """

    unit = "%"
    better = Direction.HIGHEST
    measures = MultiLabelClassificationOutput

    def __init__(self, *, threshold: float = 0.5, sigmoid: bool = True) -> None:
        self.name = f"Hamming Score @ Threshold({number(threshold)})"
        self.threshold = threshold
        self.sigmoid = sigmoid

    def measure(self, output: MultiLabelClassificationOutput) -> Mean:
        """Return the score of one batch. Raises `BuilderError` if the shapes of logits and targets differ."""
        check_label_shapes(output, self.name)
        scores = widen(output.output.detach())
        scores = scores.sigmoid() if self.sigmoid else scores
        is_correct = (scores > self.threshold) == output.targets.bool()
        return Mean.from_sum(is_correct.sum(), is_correct.numel(), 100.0)
