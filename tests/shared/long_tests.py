"""Cases of a parametrized test, and examples of Hypothesis, that only ``make long`` runs."""

import os

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
