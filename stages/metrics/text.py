"""Metrics of token sequences: perplexity, and character and word error rates.

A target of -100 is not a token of its sequence. Without decoded tokens, its position predicts none either.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stages.contracts.errors import BuilderError
from stages.contracts.history import Direction
from stages.contracts.outputs import IGNORED_TARGET, ClassificationOutput, SequenceOutput, is_counted
from stages.metrics.class_targets import SingleLabelOutput, argmax_class, split_output, widen
from stages.metrics.state import Mean

Decode = Callable[[list[int]], Sequence[Hashable]]
"""Converts the tokens of one sequence to its words."""

WORD_PADDING = -1


@dataclass(frozen=True, slots=True)
class ExpOfMean:
    """e to the power of a mean; the sum of two is that of the mean over both."""

    mean: Mean

    def __add__(self, other: Self, /) -> Self:
        return type(self)(self.mean + other.mean)

    @property
    def value(self) -> float:
        """The power; NaN without tokens, infinity if a float64 cannot hold it."""
        try:
            return math.exp(self.mean.value)
        except OverflowError:
            return math.inf

    @property
    def count(self) -> float:
        """The number of tokens."""
        return self.mean.count


class PerplexityMetric:
    """e to the power of the mean negative log likelihood of the tokens or samples.

    A target of -100 is not counted.

    Args:
        pad_token: another target that is not counted; None for none.
    """

    name = "Perplexity"
    unit = None
    better = Direction.LOWEST
    measures = (ClassificationOutput, SequenceOutput)

    def __init__(self, *, pad_token: int | None = None) -> None:
        self.pad_token = pad_token

    def measure(self, output: SingleLabelOutput) -> ExpOfMean:
        """Return the perplexity of one batch; half precision is widened before the logarithm.

        Raises `BuilderError` if the shapes do not match, and for a single logit.
        """
        logits, targets, dim = split_output(output, self.name)
        if dim is None:
            raise BuilderError(
                f"metric {self.name!r} takes a logit for each class, but the model's step returns one for "
                f"each target, {tuple(logits.shape)}: register another metric"
            )
        if dim == -1:
            logits, targets = logits.flatten(0, -2), targets.flatten()
        counted = is_counted(targets, self.pad_token)
        if not targets.is_floating_point():
            targets = targets.long()  # torch takes no other integers than these and uint8
        if self.pad_token is not None:
            targets = targets.masked_fill(~counted, IGNORED_TARGET)
        total = F.cross_entropy(widen(logits), targets, ignore_index=IGNORED_TARGET, reduction="sum")
        return ExpOfMean(Mean.from_sum(total, counted.sum()))


class CharErrorRate:
    """Edits per token of the references, in percent; one token is one character.

    Args:
        pad_token: a sequence ends before the first such token; None if no sequence is padded.
    """

    name = "CER"
    unit = "%"
    better = Direction.LOWEST
    measures = SequenceOutput

    def __init__(self, *, pad_token: int | None = None) -> None:
        self.pad_token = pad_token

    def measure(self, output: SequenceOutput) -> Mean:
        """Return the error rate of one batch."""
        return _error_rate(output.targets, predict_tokens(output), self.pad_token)


class WordErrorRate(CharErrorRate):
    """Edits per word of the references, in percent; as in Burn, one token is one word by default.

    Args:
        pad_token: a sequence ends before the first such token; None if no sequence is padded.
        decode: converts the tokens of a sequence to its words, if a token is not a word. Every batch then
            blocks on the device.
    """

    name = "WER"

    def __init__(self, *, pad_token: int | None = None, decode: Decode | None = None) -> None:
        super().__init__(pad_token=pad_token)
        self.decode = decode

    def measure(self, output: SequenceOutput) -> Mean:
        """Return the error rate of one batch."""
        if self.decode is None:
            return super().measure(output)
        words = [
            [self.decode(row) for row in trim_rows(tokens, self.pad_token)]
            for tokens in (output.targets, predict_tokens(output))
        ]
        references, predictions = _number_words(*words)
        return _error_rate(references, predictions, WORD_PADDING)


def predict_tokens(output: SequenceOutput) -> Tensor:
    """Return the decoded tokens, (B, any length), or else the most likely token at each position, (B, T).

    The latter are -100, not a token, at the positions whose target is -100.
    """
    if output.predictions is not None:
        return output.predictions
    tokens = argmax_class(output.logits.detach(), -1)
    return tokens.masked_fill_(~is_counted(output.targets), IGNORED_TARGET)


def trim_rows(tokens: Tensor, pad_token: int | None) -> list[list[int]]:
    """Return each row of *tokens* (B, T) without -100, up to its first *pad_token*. Blocks on the device."""
    rows = ([token for token in row if token != IGNORED_TARGET] for row in tokens.tolist())
    return [row[: row.index(pad_token)] if pad_token in row else row for row in rows]


def edit_distances(references: Tensor, predictions: Tensor, pad_token: int | None) -> Tensor:
    """Return the Levenshtein distance between each row of *references* and *predictions*, (B,).

    *references* are (B, R) and *predictions* (B, P); -100 is not a token, and a row ends before its first
    *pad_token*. All rows advance together on their device, without blocking: one line of the table per
    position of the references.
    """
    references, predictions = map(_move_ignored, (references, predictions))
    reference_lengths = _lengths(references, pad_token)
    prediction_lengths = _lengths(predictions, pad_token)
    positions = torch.arange(predictions.shape[1] + 1, device=predictions.device)
    line = positions.expand(len(predictions), -1)
    for position in range(references.shape[1]):
        substitution = line[:, :-1] + (predictions != references[:, position : position + 1])
        deletion = torch.cat([line[:, :1] + 1, torch.minimum(substitution, line[:, 1:] + 1)], dim=1)
        insertion = (deletion - positions).cummin(dim=1).values + positions
        line = torch.where((position < reference_lengths).unsqueeze(1), insertion, line)
    return line.gather(1, prediction_lengths.unsqueeze(1)).squeeze(1)


def _move_ignored(tokens: Tensor) -> Tensor:
    """Return the rows of *tokens* (B, T) with -100 at their ends; the others keep their order."""
    return tokens.gather(1, is_counted(tokens).logical_not().long().argsort(dim=1, stable=True))


def _lengths(tokens: Tensor, pad_token: int | None) -> Tensor:
    """Return the number of tokens of each row (B, T) before the first -100 or *pad_token*, (B,)."""
    return is_counted(tokens, pad_token).long().cumprod(dim=1).sum(dim=1)


def _error_rate(references: Tensor, predictions: Tensor, pad_token: int | None) -> Mean:
    edits = edit_distances(references, predictions, pad_token).sum()
    return Mean.from_sum(edits, _lengths(_move_ignored(references), pad_token).sum(), 100.0)


def _number_words(*texts: list[Sequence[Hashable]]) -> list[Tensor]:
    """Return each text as (B, T): equal words have equal numbers, and rows are padded with `WORD_PADDING`."""
    numbers: dict[Hashable, int] = {}
    return [
        pad_sequence(
            [_number_row(row, numbers) for row in text], batch_first=True, padding_value=WORD_PADDING
        )
        if text
        else torch.empty(0, 0, dtype=torch.int64, device="cpu")
        for text in texts
    ]


def _number_row(row: Sequence[Hashable], numbers: dict[Hashable, int]) -> Tensor:
    """Return the number of each word in *row*, and add new words to *numbers*."""
    return torch.tensor(
        [numbers.setdefault(word, len(numbers)) for word in row], dtype=torch.int64, device="cpu"
    )
