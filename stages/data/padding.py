"""Batches of sequences of different lengths, which are padded to the longest one."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stages.contracts.errors import BuilderError
from stages.data.checks import IGNORED_TARGET
from stages.data.datasets import Samples
from stages.devices.rng import preserve_random_state, seed_sample

MEASURED_ROWS = 4096
"""The number of samples that are measured at a time, which bounds the memory."""


class PaddedBatch(NamedTuple):
    """*B* sequences of at most *T* elements: token ids, or vectors of *F* numbers."""

    inputs: Tensor
    """(B, T) int64 or float32, or (B, T, F)."""
    targets: Tensor
    """(B,) or (B, …), or (B, T) with -100 at padded positions."""
    lengths: Tensor
    """The number of elements of each sequence, (B,), int64."""
    mask: Tensor
    """True for elements and False for padding, (B, T)."""


class PadBatcher:
    """A batcher that pads sequences to the longest one of the batch.

    A sequence ends with its last element that is not *pad_value*, so that it may be stored with padding, as
    the rows of an array (N, T) or (N, T, F) are. Inputs are not normalized.

    Args:
        pad_value: the id or the number of padded positions, which no sequence ends with.
        target_pad: the padded positions of targets that are sequences of integers.
    """

    def __init__(self, pad_value: float = 0, target_pad: int = IGNORED_TARGET) -> None:
        self.pad_value = pad_value
        self.target_pad = target_pad

    def batch(self, items: Sequence[tuple[Tensor, Tensor]]) -> PaddedBatch:
        """Return the batch of *items*: inputs (T,) or (T, F), and targets of any shape or (T,)."""
        if isinstance(items, Samples):
            stored, targets = items.inputs, items.targets
        else:
            inputs, answers = zip(*items, strict=True)
            stored = pad_sequence(list(inputs), batch_first=True, padding_value=self.pad_value)
            targets = self._stack_targets([torch.as_tensor(answer) for answer in answers])
        lengths = self.measure(stored)
        longest = max(1, int(lengths.max()))
        mask = torch.arange(longest) < lengths[:, None]
        if targets.shape[1:2] == stored.shape[1:2] and not targets.is_floating_point():
            targets = targets[:, :longest].masked_fill(~mask, self.target_pad)
        dtype = torch.float32 if stored.is_floating_point() else torch.int64
        return PaddedBatch(stored[:, :longest].to(dtype), targets, lengths, mask)

    def measure(self, inputs: Tensor) -> Tensor:
        """Return the length of each of *inputs*, (B, T) or (B, T, F), without its padding: (B,), int64.

        Raises `BuilderError` if the inputs are not sequences.
        """
        if inputs.ndim < 2:
            raise BuilderError(
                "the batcher 'pad' takes sequences, (T,) or (T, F); found inputs of one number. Set "
                "fit.batcher to normalize"
            )
        is_element = (
            (inputs != self.pad_value).flatten(2).any(2) if inputs.ndim > 2 else inputs != self.pad_value
        )
        positions = torch.arange(1, inputs.shape[1] + 1)
        return (is_element * positions).amax(1)

    def _stack_targets(self, targets: list[Tensor]) -> Tensor:
        if targets[0].ndim == 1 and not targets[0].is_floating_point():
            return pad_sequence(targets, batch_first=True, padding_value=self.target_pad)
        return torch.stack(targets)


def measure_lengths(dataset: Any, batcher: Any) -> Tensor:
    """Return the length of the input of each sample, (N,), for batches of similar length.

    It is the attribute ``lengths`` of *dataset* if there is one, the result of the batcher's ``measure`` for
    a dataset in memory, and otherwise ``len`` of each input, for which every sample is read once.
    Raises `BuilderError` if an input has no length.
    """
    if hasattr(dataset, "lengths"):
        return torch.as_tensor(dataset.lengths)
    if hasattr(batcher, "measure") and isinstance(getattr(dataset, "inputs", None), Tensor):
        return torch.cat([batcher.measure(rows) for rows in torch.split(dataset.inputs, MEASURED_ROWS)])
    with preserve_random_state():
        return torch.tensor([_read_length(dataset, index) for index in range(len(dataset))])


def _read_length(dataset: Any, index: int) -> int:
    seed_sample(0, index)  # a dataset may draw random numbers
    value = dataset[index][0]
    try:
        return len(value)
    except TypeError:
        raise BuilderError(
            f"batches of similar length need sequences as inputs; sample {index} has none: {value!r:.40}. "
            "Set fit.bucket to false"
        ) from None
