"""The checkpoints that a retention rule keeps."""

import math

import pytest

from stages.contracts.history import Direction, History, Split, Value
from stages.runs import AnyOf, KeepBest, KeepLast, default_retention, epochs_to_keep
from stages.runs.retention import BestConfig, Keep


@pytest.mark.parametrize(
    ("rule", "losses", "kept"),
    [
        (KeepLast(2), [3, 2, 1, 9], {3, 4}),
        (KeepLast(9), [3, 2], {1, 2}),
        (KeepLast(1), [3, 2], {2}),
        (KeepLast(0), [3, 2], set()),
        (KeepBest(), [3, 1, 2], {2}),
        (KeepBest(), [1, 1, 1], {1}),
        (KeepBest(), [math.nan, math.inf], set()),
        (AnyOf((KeepLast(1), KeepBest())), [3, 1, 2], {2, 3}),
        (default_retention(), [5, 1, 2, 3, 4], {2, 4, 5}),
        (default_retention(), [5, 1, math.nan, math.nan, math.nan], {2, 4, 5}),
    ],
)
def test_rule_keeps_the_expected_epochs(rule, losses, kept):
    values = History(Value(epoch, Split.VALID, "Loss", loss) for epoch, loss in enumerate(losses, start=1))

    assert rule.keep(range(1, len(losses) + 1), values) == kept


@pytest.mark.parametrize(("taken_over", "kept"), [([], {3, 5, 6}), ([1, 2], {3, 5, 6}), ([2], {3, 5, 6})])
def test_inherited_checkpoints_do_not_change_the_retention_of_later_epochs(taken_over, kept):
    losses = enumerate([4, 5, 1, 3, 1, 2], start=1)
    values = History(Value(epoch, Split.VALID, "Loss", loss) for epoch, loss in losses)

    assert epochs_to_keep(default_retention(), values, taken_over, 6) == kept


@pytest.mark.parametrize(
    ("losses", "taken_over", "kept"),
    [([1, 5, 6, 7], [], {1, 3, 4}), ([5, 6, 1], [1, 2, 3], {2, 3}), ([5, 6, 7], [1, 2, 3], {1, 2, 3})],
)
def test_retention_considers_every_epoch_of_the_run(losses, taken_over, kept):
    values = History(Value(epoch, Split.VALID, "Loss", loss) for epoch, loss in enumerate(losses, start=1))

    assert epochs_to_keep(default_retention(), values, taken_over, len(losses)) == kept


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (KeepBest("Accuracy", Split.TRAIN, Direction.HIGHEST), {2}),
        (KeepBest("Accuracy", Split.TRAIN), {1}),
        (KeepBest("Accuracy", Split.VALID, Direction.HIGHEST), {3}),
        (Keep(last=1, best=(BestConfig(metric="Accuracy", direction=Direction.HIGHEST),)).rule(), {3}),
        (Keep(last=1, best=(BestConfig(metric="Accuracy", split=Split.TRAIN),)).rule(), {1, 3}),
        (Keep(last=2, best=()).rule(), {2, 3}),
    ],
)
def test_best_epoch_depends_on_metric_split_and_direction(rule, kept):
    history = History(
        Value(epoch, split, "Accuracy", value)
        for split, values in ((Split.TRAIN, [1, 9, 5]), (Split.VALID, [2, 3, 8]))
        for epoch, value in enumerate(values, start=1)
    )

    assert rule.keep([1, 2, 3], history) == kept


def test_best_epoch_without_a_checkpoint_is_not_kept():
    history = History(Value(epoch, Split.VALID, "Loss", loss) for epoch, loss in ((1, 0.1), (2, 0.5)))

    assert KeepBest().keep([2], history) == set()


def test_maximum_number_of_checkpoints_is_the_last_plus_the_best():
    assert Keep().most == 3
    assert Keep(last=4, best=(BestConfig(), BestConfig(metric="Accuracy"))).most == 6
