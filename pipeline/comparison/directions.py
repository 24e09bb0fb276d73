"""Which way a metric is better, told from its name: no output of a run says so."""

import re

from stages.contracts.history import Direction

_PARTS = {
    Direction.LOWEST: ("loss", "error", "perplexity"),
    Direction.HIGHEST: (
        "accuracy",
        "auroc",
        "precision",
        "recall",
        "score",
        "bleu",
        "rouge",
        "dice",
        "ssim",
        "psnr",
    ),
}
"""What may stand anywhere in a name."""
_WORDS = {
    Direction.LOWEST: {"mae", "mse", "rmse", "wer", "cer"},
    Direction.HIGHEST: {"auc", "f1", "map", "iou", "r2"},
}
"""What is too short for that, and must stand by itself."""


def direction_of(metric: str) -> Direction | None:
    """What the name *metric* says; None where it says nothing, as that of a learning rate."""
    name = metric.casefold()
    words = set(re.findall(r"[a-z0-9]+", name))
    for direction in (Direction.LOWEST, Direction.HIGHEST):
        if words & _WORDS[direction] or any(part in name for part in _PARTS[direction]):
            return direction
    return None
