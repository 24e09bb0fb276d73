"""The history in a checkpoint, in the current and in the previous format."""

import math

import pytest
import torch

from stages.checkpoints import Checkpoint, FileCheckpointer
from stages.contracts.errors import CheckpointError
from stages.contracts.history import Direction, History, Split, Value
from stages.learner.run_state import best_epoch, history_of, history_tree
from stages.records import BytesRecorder, DefaultRecorder, OriginalPrecision
from stages.records.formats import FORMATS

OLD_ROWS = [[1, "train", "Loss", 0.5], [1, "valid", "Loss", math.inf], [2, "train", "Loss", 0.25]]
"""The history in checkpoints of older versions."""
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


def test_checkpoint_with_a_history_of_rows_is_read():
    read = history_of(checkpoint(OLD_ROWS))

    assert read.series(Split.TRAIN, "Loss") == {1: 0.5, 2: 0.25}
    assert read.series(Split.VALID, "Loss") == {1: math.inf}


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


def test_resume_from_rows_equals_resume_from_columns(train, tmp_path):
    uninterrupted = train(tmp_path / "uninterrupted", epochs=4)
    train(tmp_path / "old", epochs=2)
    saved = FileCheckpointer(tmp_path / "old/checkpoint", DefaultRecorder())
    found = saved.restore(2)
    rows = [[v.epoch, v.split.value, v.metric, v.value] for v in history_of(found)]
    saved.save(2, Checkpoint(found.model, found.optim, found.scheduler, found.trainer | {"history": rows}))

    train(tmp_path / "old", epochs=4, checkpoint=2)

    for name in ("model-4", "optim-4", "trainer-4"):
        files = [tmp_path / run / f"checkpoint/{name}.mpk.gz" for run in ("old", "uninterrupted")]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert uninterrupted.epoch == 4


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
