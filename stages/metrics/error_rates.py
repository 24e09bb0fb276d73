"""The share of characters or words that must be edited to make a prediction right."""

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stages.contracts.history import Direction
from stages.contracts.outputs import SequenceOutput
from stages.metrics.edit_distance import edit_distances, lengths
from stages.metrics.mean import Mean
from stages.metrics.sequences import predicted, rows

Decode = Callable[[list[int]], Sequence[Hashable]]
"""From the tokens of one sequence to its words."""

NO_WORD = -1


class CharErrorRate:
    """Edits over the tokens of the references, in per cent; a token is a character.

    A sequence ends before its first ``pad_token``, wherever that stands.
    """

    name = "CER"
    unit = "%"
    better = Direction.LOWEST
    measures = SequenceOutput

    def __init__(self, *, pad_token: int | None = None) -> None:
        self.pad_token = pad_token

    def measure(self, output: SequenceOutput) -> Mean:
        """Of one batch."""
        return _rate(output.targets, predicted(output), self.pad_token)


class WordErrorRate:
    """Edits over the words of the references, in per cent; as in Burn, a token is a word.

    Where it is not, ``decode`` makes the words from a sequence's tokens, and each batch waits for the device.
    """

    name = "WER"
    unit = "%"
    better = Direction.LOWEST
    measures = SequenceOutput

    def __init__(self, *, pad_token: int | None = None, decode: Decode | None = None) -> None:
        self.pad_token = pad_token
        self.decode = decode

    def measure(self, output: SequenceOutput) -> Mean:
        """Of one batch."""
        if self.decode is None:
            return _rate(output.targets, predicted(output), self.pad_token)
        words = [
            [self.decode(row) for row in rows(tokens, self.pad_token)]
            for tokens in (output.targets, predicted(output))
        ]
        references, predictions = _numbered(*words)
        return _rate(references, predictions, NO_WORD)


def _rate(references: Tensor, predictions: Tensor, pad_token: int | None) -> Mean:
    edits = edit_distances(references, predictions, pad_token).sum()
    return Mean.sum(edits, lengths(references, pad_token).sum(), 100.0)


def _numbered(*texts: list[Sequence[Hashable]]) -> list[Tensor]:
    """Each text as (B, T): equal words have equal numbers, and `NO_WORD` fills up the rows."""
    numbers: dict[Hashable, int] = {}
    return [
        pad_sequence(
            [torch.tensor([numbers.setdefault(word, len(numbers)) for word in row]).long() for row in text],
            batch_first=True,
            padding_value=NO_WORD,
        )
        if text
        else torch.empty(0, 0, dtype=torch.int64)
        for text in texts
    ]
