"""The history in a checkpoint: for each metric one tensor of values, so that an epoch adds a few bytes.

Older checkpoints hold a row ``[epoch, split, metric, value]`` for each value. They are read too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.checkpoints import Checkpoint
from stages.contracts.errors import CheckpointError
from stages.contracts.history import History, Split, Value
from stages.records import Tree

INTEGERS = (torch.int32, torch.int64)


def history_tree(history: History) -> Tree:
    """Return *history* as a tree that a record holds: a map for each metric and split.

    ``epochs`` is the first epoch if the others follow without a gap, else a tensor of them; ``values`` is a
    tensor of as many floats of 64 bits.
    """
    return [
        {
            "split": split.value,
            "metric": metric,
            "epochs": _epochs_tree(series.epochs),
            "values": torch.from_numpy(np.array(series.values)),
        }
        for (split, metric), series in history.columns().items()
    ]


def history_of(checkpoint: Checkpoint) -> History:
    """Return the values up to *checkpoint*. Raises `CheckpointError` if they are not a history."""
    found = History()
    try:
        for entry in checkpoint.trainer["history"]:
            values = _values(entry) if isinstance(entry, Mapping) else [_value(*entry)]
            for value in values:
                found.add(value)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the history in the checkpoint cannot be read: {error}") from error
    return found


def _epochs_tree(epochs: Sequence[int]) -> int | Tensor:
    gapless = epochs[-1] - epochs[0] + 1 == len(epochs)
    return epochs[0] if gapless else torch.tensor(epochs, dtype=torch.int64)


def _values(entry: Mapping[str, Any]) -> list[Value]:
    split, metric, values, epochs = Split(entry["split"]), entry["metric"], entry["values"], entry["epochs"]
    if not isinstance(values, Tensor) or values.dtype != torch.float64 or values.dim() != 1:
        raise ValueError(f"the values of {split} {metric} are not a tensor of floats of 64 bits")
    if isinstance(epochs, Tensor) and epochs.dtype in INTEGERS and epochs.shape == values.shape:
        numbers: Sequence[int] = epochs.tolist()
    elif type(epochs) is int:
        numbers = range(epochs, epochs + len(values))
    else:
        raise ValueError(f"the epochs of {split} {metric} are not one integer, or one for each value")
    pairs = zip(numbers, values.tolist(), strict=True)
    return [Value(number, split, metric, value) for number, value in pairs]


def _value(epoch: int, split: str, metric: str, value: float) -> Value:
    return Value(epoch, Split(split), metric, value)
