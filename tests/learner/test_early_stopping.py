"""Early stopping."""

import math

import pytest

from stages.contracts.history import Direction, History, Split, Value
from stages.runs import MetricEarlyStopping


def stopped_after(rule, values):
    """Return the epoch after which *rule* ends a run with these validation losses; None if it does not."""
    history = History()
    for epoch, value in enumerate(values, start=1):
        history.add(Value(epoch, Split.VALID, "Loss", value))
        if rule.reason(history):
            return epoch
    return None


@pytest.mark.parametrize(
    ("rule", "values", "epoch"),
    [
        (MetricEarlyStopping(n_epochs=2), [5, 4, 3, 2, 1], None),
        (MetricEarlyStopping(n_epochs=2), [5, 4, 4, 4, 1], 4),
        (MetricEarlyStopping(n_epochs=2), [5, 6, 4, 5, 6], 5),
        (MetricEarlyStopping(n_epochs=2, min_delta=0.5), [5, 4.8, 4.6, 1], 3),
        (MetricEarlyStopping(n_epochs=2, warmup_epochs=4), [5, 6, 6, 6, 6], 5),
        (MetricEarlyStopping(n_epochs=2, direction=Direction.HIGHEST), [5, 4, 3], 3),
        (MetricEarlyStopping(n_epochs=1), [math.nan, math.nan], 2),
        (MetricEarlyStopping(n_epochs=2), [3, math.nan, 2, math.nan, math.nan], 5),
        (MetricEarlyStopping(n_epochs=1, metric="Accuracy"), [1], None),
    ],
)
def test_run_stops_after_the_epochs_without_a_better_value(rule, values, epoch):
    assert stopped_after(rule, values) == epoch


def test_resumed_run_stops_at_the_epoch_of_an_uninterrupted_one(train, tmp_path):
    rule = MetricEarlyStopping(n_epochs=2, direction=Direction.HIGHEST)

    uninterrupted = train(tmp_path / "uninterrupted", epochs=9, change=lambda b: b.early_stopping(rule))
    train(tmp_path / "interrupted", epochs=2, change=lambda b: b.early_stopping(rule))
    resumed = train(tmp_path / "interrupted", epochs=9, checkpoint=2, change=lambda b: b.early_stopping(rule))

    assert uninterrupted.epoch == resumed.epoch < 9
