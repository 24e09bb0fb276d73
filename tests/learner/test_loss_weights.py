"""Losses with any divisor are combined as those of one large batch: in windows, in epochs and over them."""

import pytest
from long_tests import covering_cases
from weighted_runs import CASES, TOLERANCE, assert_close, train, train_plainly

WINDOWS = {
    f"{window}-{leftover}": (window, leftover)
    for window, leftover in [(1, "flush"), (3, "flush"), (3, "drop"), (3, "carry")]
}


@pytest.mark.parametrize(
    ("case", "window", "dtype"), covering_cases(CASES, WINDOWS, [*TOLERANCE], strength=1)
)
def test_window_and_epoch_are_those_of_one_large_batch(case, window, dtype, tmp_path):
    found = train(tmp_path, case, *window, dtype=dtype)

    assert_close(found, train_plainly(case, *window), TOLERANCE[dtype])
