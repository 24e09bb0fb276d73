"""Numbers, durations, sizes and JSON as text."""

import json
import math
from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples

from stages.contracts.text import (
    format_age,
    format_duration,
    format_fixed,
    format_megabytes,
    format_rounded,
    format_size,
    json_number,
    number,
    scientific,
    to_json,
)


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
def test_number_is_formatted_as_in_rust(value, text):
    assert number(value) == text


@given(st.floats(allow_nan=False))
def test_formatted_number_is_restored_exactly_and_has_no_exponent(value):
    assert float(number(value)) == value
    assert "e" not in number(value)


def as_rust_displays(value):
    """Return the fewest digits that are restored exactly, rounded half up, as Rust's shortest mode does."""
    for digits in range(1, 18):
        context = Context(prec=digits, rounding=ROUND_HALF_UP)
        short = context.create_decimal(Decimal(value))
        if float(short) == value:
            return format(short.normalize(context), "f")
    raise AssertionError(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (740.74542236328125, "740.7454223632813"),
        (79.651702880859375, "79.65170288085938"),
        (-12.8085479736328125, "-12.808547973632813"),
        (999.68511962890625, "999.6851196289063"),
        (2.0**-25, "0.000000029802322387695313"),
        (-(2.0**-25), "-0.000000029802322387695313"),
    ],
)
def test_tie_in_the_last_digit_is_rounded_up_as_in_rust(value, text):
    assert number(value) == as_rust_displays(value)
    assert number(value) == text


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False))
@settings(max_examples=examples(400))
def test_any_float32_is_formatted_as_in_rust(value):
    if abs(math.frexp(value)[0]) != 0.5:  # around a power of two the spacing is uneven
        assert number(value) == (as_rust_displays(value) if value else number(value))


@given(st.integers(1, 2**27).map(lambda n: 2 * n + 1), st.integers(10, 28))
@settings(max_examples=examples(400))
def test_any_tie_is_formatted_as_in_rust(odd, bits):
    assert number(odd / 2**bits) == as_rust_displays(odd / 2**bits)


@pytest.mark.parametrize(
    ("value", "decimals", "text"), [(0.125, 2, "0.12"), (0.375, 2, "0.38"), (2.5, 0, "2")]
)
def test_fixed_decimals_round_a_tie_to_the_even_digit_as_in_rust(value, decimals, text):
    assert format_fixed(value, decimals) == text


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
def test_displayed_number_equals_that_of_burn(value, decimals, text):
    assert format_rounded(value, decimals) == text


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (format_fixed, 0.0625, "0.062"),
        (format_fixed, math.nan, "NaN"),
        (format_fixed, math.inf, "inf"),
        (scientific, 0.009876, "9.876e-3"),
        (scientific, 0.0, "0.000e0"),
        (scientific, -12.5, "-1.250e1"),
        (scientific, -math.inf, "-inf"),
        (scientific, math.nan, "NaN"),
    ],
)
def test_number_with_three_decimals_equals_that_of_burn(write, value, text):
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
def test_number_in_json_equals_that_of_burns_config(value, text):
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
def test_json_is_restored_and_has_the_layout_of_python(data):
    text, expected = to_json(data), json.dumps(data, indent=2, ensure_ascii=False)

    assert json.loads(text) == data
    assert text == expected or "e-" in expected or "e+" in expected  # Rust has other exponents


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
def test_json_of_scalars_and_empty_containers(data, text):
    assert to_json(data) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.25, "7.2 s"), (59.99, "1 min 0 s"), (185, "3 min 5 s"), (7380, "2 h 3 min")]
)
def test_duration_has_at_most_two_units(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 s"), (59.9, "59 s"), (119, "1 min"), (7199, "1 h"), (200_000, "2 d")]
)
def test_age_is_rounded_down_to_one_unit(seconds, text):
    assert format_age(seconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (2**21, "2.0 MiB"),
        (2**31, "2.0 GiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_size_has_the_largest_unit_that_fits(nbytes, text):
    assert format_size(nbytes) == text


def test_megabytes_are_millions_of_bytes():
    assert format_megabytes(1_234_500_000) == "1,234.5 MB"
