"""How numbers are written."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contracts.text import number, rounded, to_json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (100.0, "100"),
        (0.0, "0"),
        (-0.0, "-0"),
        (1e-7, "0.0000001"),
        (1e21, "1000000000000000000000"),
        (20.3125, "20.3125"),
        (2.3429126739501953, "2.3429126739501953"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
    ],
)
def test_a_number_is_written_as_rust_writes_it(value, text):
    assert number(value) == text


@given(st.floats(allow_nan=False))
def test_a_number_reads_back_the_same_and_has_no_exponent(value):
    assert float(number(value)) == value
    assert "e" not in number(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (97.254, "97.25"),
        (0.11, "0.11"),
        (0.1, "1.00e-1"),
        (0.0923, "9.23e-2"),
        (0.0, "0.00e0"),
        (-3.0, "-3.00e0"),
        (math.nan, "NaN"),
    ],
)
def test_a_number_for_people_looks_as_in_burn(value, text):
    assert rounded(value) == text


def test_json_keeps_the_order_of_keys():
    assert to_json({"b": 1, "a": [0.5]}) == '{\n  "b": 1,\n  "a": [\n    0.5\n  ]\n}'
    assert json.loads(to_json({"ü": None})) == {"ü": None}
