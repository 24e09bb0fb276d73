"""The tokens of a `SequenceOutput`, as the text metrics read them."""

from torch import Tensor

from stages.contracts.outputs import SequenceOutput
from stages.metrics.labels import highest


def predicted(output: SequenceOutput) -> Tensor:
    """Return the decoded tokens, or else the likeliest at each place, (B, any length)."""
    return highest(output.logits.detach(), -1) if output.predictions is None else output.predictions


def rows(tokens: Tensor, pad_token: int | None) -> list[list[int]]:
    """Each row (B, T) up to its first *pad_token*. Waits for the device."""
    whole: list[list[int]] = tokens.tolist()
    return [row[: row.index(pad_token)] if pad_token in row else row for row in whole]
