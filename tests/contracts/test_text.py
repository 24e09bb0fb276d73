"""How numbers are written."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contracts.text import fixed, json_number, number, rounded, scientific, to_json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (100.0, "100"),
        (0.0, "0"),
        (-0.0, "-0"),
        (1e-7, "0.0000001"),
        (1e21, "1000000000000000000000"),
        (20.3125, "20.3125"),
        (0.8088355660438538, "0.8088355660438538"),
        (5e-324, "0." + "0" * 323 + "5"),
        (64, "64"),
        (np.float64(0.1), "0.1"),
        (np.float32(0.5), "0.5"),
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
    ("value", "decimals", "text"),
    [
        (97.254, 2, "97.25"),
        (0.11, 2, "0.11"),
        (0.1, 2, "1.00e-1"),
        (0.0923, 2, "9.23e-2"),
        (1.5e-12, 2, "1.50e-12"),
        (0.0, 2, "0.00e0"),
        (-3.0, 2, "-3.00e0"),
        (-0.5, 4, "-5.0000e-1"),
        (math.nan, 2, "NaN"),
        (math.inf, 2, "inf"),
        (-math.inf, 2, "-inf"),
        (0.0011, 4, "0.0011"),
        (0.001, 4, "1.0000e-3"),
        (12345.6, 0, "12346"),
        (10.0, 0, "1e1"),
    ],
)
def test_a_number_for_people_looks_as_in_burn(value, decimals, text):
    assert rounded(value, decimals) == text


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (fixed, 0.0625, "0.062"),
        (fixed, math.nan, "NaN"),
        (fixed, math.inf, "inf"),
        (scientific, 0.009876, "9.876e-3"),
        (scientific, 0.0, "0.000e0"),
        (scientific, -12.5, "-1.250e1"),
        (scientific, -math.inf, "-inf"),
        (scientific, math.nan, "NaN"),
    ],
)
def test_a_number_of_three_decimals_looks_as_in_burn(write, value, text):
    assert write(value, 3) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.9, "0.9"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (0.0001, "0.0001"),
        (1e-5, "0.00001"),
        (-2.5e-5, "-0.000025"),
        (9.9e-6, "9.9e-6"),
        (1e-8, "1e-8"),
        (1234567890123456.0, "1234567890123456.0"),
        (1e16, "1e16"),
        (1.5e300, "1.5e300"),
        (math.nan, '"NaN"'),
        (math.inf, '"inf"'),
        (-math.inf, '"-inf"'),
    ],
)
def test_a_number_in_json_is_written_as_burns_config_writes_it(value, text):
    assert json_number(value) == text


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_reads_back_the_same_and_is_laid_out_as_pythons(data):
    text = to_json(data)

    assert json.loads(text) == data
    assert text == json.dumps(data, indent=2, ensure_ascii=False) or "e" in text


def test_json_keeps_the_order_of_keys():
    assert to_json({"b": 1, "a": [0.5]}) == '{\n  "b": 1,\n  "a": [\n    0.5\n  ]\n}'
    assert json.loads(to_json({"ü": None})) == {"ü": None}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, "{}"),
        ([], "[]"),
        ((), "[]"),
        ({"a": {}}, '{\n  "a": {}\n}'),
        ({1: True}, '{\n  "1": true\n}'),
        ("ü\n\x1f", '"ü\\n\\u001f"'),
    ],
)
def test_json_of_small_things(data, text):
    assert to_json(data) == text
