"""The history in a checkpoint."""

import math

import pytest
import torch

from stages.contracts.errors import CheckpointError
from stages.contracts.history import Direction, History, Split, Value
from stages.learner.run_state import best_epoch, history_of, history_tree
from stages.records import BytesRecorder, OriginalPrecision
from stages.records.formats import FORMATS
from stages.runs import Checkpoint

COLUMN = {"split": "valid", "metric": "Loss", "epochs": 1, "values": torch.zeros(3, dtype=torch.float64)}
BYTES = BytesRecorder(FORMATS["named_mpk"], OriginalPrecision)


def losses(values, first=1):
    return [Value(epoch, Split.VALID, "Loss", value) for epoch, value in enumerate(values, start=first)]


def checkpoint(history):
    return Checkpoint({}, {}, None, {"history": history})


@pytest.mark.parametrize(
    "values",
    [
        [],
        losses([0.1, -1e300, 5e-324]),
        losses([1.0, 2.0], first=7),
        [*losses([1.0]), *losses([2.0], first=5)],
        [*losses([1.0, 2.0]), Value(2, Split.TRAIN, "Accuracy", 97.5)],
    ],
)
def test_history_is_restored_from_a_record_bit_for_bit(values):
    tree = BYTES.load(BYTES.record({"history": history_tree(History(values))}))["history"]

    assert list(history_of(checkpoint(tree))) == values


def test_best_epoch_has_the_lowest_finite_validation_loss():
    others = [Value(1, Split.TRAIN, "Loss", 0.0), Value(2, Split.VALID, "Accuracy", 0.0)]
    tree = history_tree(History([*losses([0.3, 0.5, 0.1, math.nan, 0.1]), *others]))

    assert best_epoch(checkpoint(tree)) == 3
    with pytest.raises(CheckpointError, match="no epoch has a finite validation loss"):
        best_epoch(checkpoint(history_tree(History([*losses([math.nan]), *others]))))


@pytest.mark.parametrize(
    "wrong",
    [
        [["1", "train"]],
        [[1, "test", "Loss", 0.5]],
        [COLUMN | {"epochs": None}],
        [COLUMN | {"epochs": torch.tensor([1, 2])}],
        [COLUMN | {"values": torch.zeros(3)}],
        [COLUMN | {"values": [0.0]}],
        [{"split": "valid"}],
        [7],
        None,
    ],
)
def test_invalid_history_is_rejected(wrong):
    with pytest.raises(CheckpointError, match="cannot read the history in the checkpoint"):
        history_of(checkpoint(wrong))


def test_value_takes_eight_bytes():
    short, long = (
        len(BYTES.record({"history": history_tree(History(losses([0.1] * count)))})) for count in (1000, 2000)
    )

    assert long - short == 8 * 1000


def test_best_epoch_of_a_metric():
    accuracies = [
        Value(epoch, Split.TRAIN, "Accuracy", each) for epoch, each in enumerate([1, 3, 2], start=1)
    ]
    tree = history_tree(History([*losses([0.1, 0.2, 0.3]), *accuracies]))

    assert best_epoch(checkpoint(tree), "Accuracy", Split.TRAIN, Direction.HIGHEST) == 2
    with pytest.raises(
        CheckpointError, match="no epoch has a finite valid Recall, so there is no best epoch"
    ):
        best_epoch(checkpoint(tree), "Recall")
