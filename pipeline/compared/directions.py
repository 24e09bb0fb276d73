"""Which way a metric is better, for runs that do not say so themselves."""

from stages.contracts.history import Direction

_LOWEST = ("loss", "error", "perplexity", "mae", "mse", "rmse", "wer", "cer")
_HIGHEST = ("accuracy", "auroc", "precision", "recall", "f1", "fbeta", "f-beta", "hamming", "score", "r2")


def direction_of(metric: str) -> Direction | None:
    """What the words in *metric* say; None where they say nothing, as of a learning rate."""
    words = metric.lower()
    if any(each in words for each in _LOWEST):
        return Direction.LOWEST
    return Direction.HIGHEST if any(each in words for each in _HIGHEST) else None
