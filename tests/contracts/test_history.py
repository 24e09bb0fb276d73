"""The numbers so far."""

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
def test_the_best_is_finite_and_the_earlier_of_equals(losses, direction, best):
    assert history(*losses).best(Split.VALID, "Loss", direction) == best


def test_a_second_value_takes_the_place_of_the_first():
    twice = history(3)
    twice.add(Value(1, Split.VALID, "Loss", 4))

    assert twice.series(Split.VALID, "Loss") == {1: 4}
    assert len(twice) == 1
