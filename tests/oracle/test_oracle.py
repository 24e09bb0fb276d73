"""Runs of random configurations equal a plain loop in float64: a few, and 300 with ``make long``."""

import oracle
import pytest
from long_tests import long


@pytest.mark.parametrize(
    ("first", "count", "ranks"),
    [(1, 12, 1), long(13, 212, 1), long(1001, 50, 2), long(1051, 26, 3)],
)
def test_random_runs_are_those_of_a_plain_loop(first, count, ranks, tmp_path):
    assert oracle.compare(list(range(first, first + count)), str(tmp_path), ranks) == []
