"""The history: metric values by epoch, and the best epoch."""

import math

import pytest

from stages.contracts.history import Direction, History, Split, Value


def history(*losses):
    return History(Value(epoch, Split.VALID, "Loss", loss) for epoch, loss in enumerate(losses, start=1))


@pytest.mark.parametrize(
    ("losses", "direction", "best"),
    [
        ([3, 1, 2], Direction.LOWEST, 2),
        ([3, 1, 2], Direction.HIGHEST, 1),
        ([1, 1], Direction.LOWEST, 1),
        ([1, 1], Direction.HIGHEST, 1),
        ([math.nan, 2, math.inf], Direction.LOWEST, 2),
        ([math.inf, 2], Direction.HIGHEST, 2),
        ([math.nan], Direction.LOWEST, None),
        ([], Direction.LOWEST, None),
    ],
)
def test_best_epoch_is_finite_and_the_earliest_of_equal_values(losses, direction, best):
    assert history(*losses).best(Split.VALID, "Loss", direction) == best


def test_later_value_of_an_epoch_replaces_the_earlier_one():
    twice = history(3)
    twice.add(Value(1, Split.VALID, "Loss", 4))

    assert twice.series(Split.VALID, "Loss") == {1: 4}
    assert len(twice) == 1


def test_values_may_be_added_in_any_order():
    losses = {3: 1.0, 1: 2.0, 4: 3.0, 2: 0.5}
    shuffled = History(Value(epoch, Split.VALID, "Loss", loss) for epoch, loss in losses.items())

    assert list(shuffled.series(Split.VALID, "Loss").items()) == sorted(losses.items())
    assert shuffled.best(Split.VALID, "Loss", Direction.LOWEST) == 2
    assert shuffled.epochs == 4


def test_best_epoch_is_updated_by_values_added_or_replaced_later():
    losses = history(3, 2)
    assert losses.best(Split.VALID, "Loss", Direction.LOWEST) == 2

    losses.add(Value(3, Split.VALID, "Loss", 1))
    assert losses.best(Split.VALID, "Loss", Direction.LOWEST) == 3
    losses.add(Value(3, Split.VALID, "Loss", 9))
    assert losses.best(Split.VALID, "Loss", Direction.LOWEST) == 2


def test_values_of_an_epoch_are_those_measured_in_it():
    losses = history(3, 2)
    losses.add(Value(2, Split.TRAIN, "Accuracy", 50.0))

    assert losses.at(1) == [Value(1, Split.VALID, "Loss", 3)]
    assert losses.at(2) == [Value(2, Split.VALID, "Loss", 2), Value(2, Split.TRAIN, "Accuracy", 50.0)]
    assert (losses.at(3), losses.value(3, Split.VALID, "Loss")) == ([], None)
    assert losses.value(1, Split.VALID, "Loss") == 3
