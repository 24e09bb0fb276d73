"""One right class for each row of logits: what accuracy, top-k accuracy and perplexity have in common."""

from torch import Tensor

from stages.contracts.outputs import ClassificationOutput, SequenceOutput
from stages.metrics.mean import Mean

Labelled = ClassificationOutput | SequenceOutput
"""An output with one class a sample, or one a token: logits (…, C) and targets (…)."""


def logits_of(output: Labelled) -> Tensor:
    """(B, C) of samples, (B, T, V) of tokens; off the graph, where every operation costs less."""
    return (output.logits if isinstance(output, SequenceOutput) else output.output).detach()


def share(hits: Tensor, targets: Tensor, pad_token: int | None) -> Mean:
    """The *hits* among the *targets* in per cent; a target that is the *pad_token* is in neither number."""
    if pad_token is None:
        return Mean.sum(hits.sum(), targets.numel(), 100.0)
    real = targets != pad_token
    return Mean.sum((hits & real).sum(), real.sum(), 100.0)
