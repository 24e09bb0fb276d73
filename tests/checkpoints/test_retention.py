"""Which checkpoints stay."""

import math

import pytest

from stages.checkpoints import AnyOf, KeepBest, KeepLast, default_retention, kept_epochs
from stages.contracts.history import History, Split, Value


@pytest.mark.parametrize(
    ("rule", "losses", "kept"),
    [
        (KeepLast(2), [3, 2, 1, 9], {3, 4}),
        (KeepLast(9), [3, 2], {1, 2}),
        (KeepLast(0), [3, 2], set()),
        (KeepBest(), [3, 1, 2], {2}),
        (KeepBest(), [1, 1, 1], {1}),
        (KeepBest(), [math.nan, math.inf], set()),
        (AnyOf((KeepLast(1), KeepBest())), [3, 1, 2], {2, 3}),
        (default_retention(), [5, 1, 2, 3, 4], {2, 4, 5}),
        (default_retention(), [5, 1, math.nan, math.nan, math.nan], {2, 4, 5}),
    ],
)
def test_a_rule_keeps_the_epochs_it_names_and_no_other(rule, losses, kept):
    values = History(Value(epoch, Split.VALID, "Loss", loss) for epoch, loss in enumerate(losses, start=1))

    assert rule.keep(range(1, len(losses) + 1), values) == kept


@pytest.mark.parametrize(("taken_over", "kept"), [([], {3, 5, 6}), ([1, 2], {3, 5, 6}), ([2], {3, 5, 6})])
def test_the_checkpoints_of_a_run_follow_from_its_history(taken_over, kept):
    losses = enumerate([4, 5, 1, 3, 1, 2], start=1)
    values = History(Value(epoch, Split.VALID, "Loss", loss) for epoch, loss in losses)

    assert kept_epochs(default_retention(), values, taken_over, 6) == kept
