"""Cases of a parametrized test, and examples of Hypothesis, that only ``make long`` runs."""

import os
from itertools import combinations, product
from math import comb

import pytest

IS_LONG = bool(os.environ.get("LEARNER_TEST_LONG"))


def long(*values, id=None):  # noqa: A002  as in pytest.param
    """Return the case *values* of `pytest.mark.parametrize`, marked as long."""
    return pytest.param(*values, marks=pytest.mark.long, id=id)


def cases(named, short):
    """Return a case for each item of *named*, a map from id to values; those not in *short* are long."""
    return [
        pytest.param(*each, id=name) if name in short else long(*each, id=name)
        for name, each in named.items()
    ]


def examples(count):
    """Return the number of examples of a test that has *count* in ``make long``."""
    return count if IS_LONG else max(count // 5, min(count, 10))


def covering_cases(*options, strength=2):
    """Return a case for each combination of a value of each of *options*, maps from id to value or lists.

    The cases that are not needed for each combination of values of *strength* options are long.
    """
    named = [
        values if isinstance(values, dict) else {str(value): value for value in values} for values in options
    ]
    rows = [*product(*named)]
    parts = {row: {*combinations(enumerate(row), strength)} for row in rows}
    missing, short = set().union(*parts.values()), set()
    for gain in range(comb(len(options), strength), 0, -1):
        for row in rows:
            if len(parts[row] & missing) >= gain:
                missing -= parts[row]
                short.add(row)
    return [
        (pytest.param if row in short else long)(
            *(values[name] for values, name in zip(named, row, strict=True)), id="-".join(row)
        )
        for row in rows
    ]
