"""The share of samples, or tokens, whose class is among the likeliest."""

from stages.contracts.errors import BuilderError
from stages.contracts.history import Direction
from stages.contracts.outputs import ClassificationOutput, SequenceOutput
from stages.metrics.labels import Labelled, logits_of, share
from stages.metrics.mean import Mean


class TopKAccuracyMetric:
    """The share of samples whose class is among their *k* highest logits, in per cent."""

    unit = "%"
    better = Direction.HIGHEST
    measures = (ClassificationOutput, SequenceOutput)

    def __init__(self, k: int, *, pad_token: int | None = None) -> None:
        if k < 1:
            raise BuilderError(f"top-k accuracy takes a k of 1 or more, not {k}")
        self.name = f"Top-K Accuracy @ TopK({k})"
        self.k = k
        self.pad_token = pad_token
        """A target that is no sample at all: neither right nor wrong."""

    def measure(self, output: Labelled) -> Mean:
        """Of one batch. Raises `BuilderError` where there are fewer than *k* classes."""
        logits = logits_of(output)
        if self.k > logits.shape[-1]:
            raise BuilderError(
                f"metric {self.name!r} has a k of {self.k}, and the model {logits.shape[-1]} classes"
            )
        hits = (logits.topk(self.k, dim=-1).indices == output.targets.unsqueeze(-1)).any(dim=-1)
        return share(hits, output.targets, self.pad_token)
