"""Losses with any divisor are combined as those of one large batch: in windows, in epochs and over them."""

import pytest
from weighted_runs import CASES, TOLERANCE, assert_close, train, train_plainly

WINDOWS = [(1, "flush"), (3, "flush"), (3, "drop"), (3, "carry")]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("window", "leftover"), WINDOWS)
@pytest.mark.parametrize("name", CASES)
def test_window_and_epoch_are_those_of_one_large_batch(name, window, leftover, dtype, tmp_path):
    found = train(tmp_path, CASES[name], window, leftover, dtype=dtype)

    assert_close(found, train_plainly(CASES[name], window, leftover), TOLERANCE[dtype])
