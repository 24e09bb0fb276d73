"""Cases of a parametrized test that only ``make long`` runs."""

import pytest


def long(*values, id=None):  # noqa: A002  as in pytest.param
    """Return the case *values* of `pytest.mark.parametrize`, marked as long."""
    return pytest.param(*values, marks=pytest.mark.long, id=id)


def cases(named, short):
    """Return a case for each item of *named*, a map from id to values; those not in *short* are long."""
    return [
        pytest.param(*each, id=name) if name in short else long(*each, id=name)
        for name, each in named.items()
    ]
