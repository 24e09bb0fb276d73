"""How numbers and JSON are written, so that the same run is the same bytes."""

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

SURELY_EXACT = 16
"""The length of a shortest text that never ends in a tie: 15 digits and a point are too few for one."""


def number(value: float) -> str:
    """Return *value* as Rust's ``f64`` displays it: the shortest digits that read back the same, no exponent.

    ``100`` and ``0`` have no fraction, ``1e-7`` is ``0.0000001``; ``NaN``, ``inf``, ``-inf``. If *value* is
    exactly between two such texts, Rust takes the one further from 0, and Python the one with the even digit.
    """
    text = repr(float(value))
    if len(text) > SURELY_EXACT:
        return _with_tie_up(value, text)
    if text.endswith(".0"):
        return text[:-2]
    if "e" in text:
        return format(Decimal(text), "f")
    return "NaN" if text == "nan" else text


def json_number(value: float) -> str:
    """*value* as Burn's JSON has it: ``1.0``, ``0.00001``; below that, and from 1e16 on, ``1e-6``, ``1e16``.

    What JSON has no number for is the text ``"NaN"``, ``"inf"`` or ``"-inf"``. (Burn writes ``null``,
    and cannot read it back.)
    """
    if not math.isfinite(value):
        return f'"{number(value)}"'
    text = repr(float(value))
    if "e" not in text:
        return text
    if 1e-5 <= abs(value) < 1e-4:
        return number(value)
    return _short_exponent(text)


def to_json(data: Any) -> str:
    """*data* with keys in the order given, two spaces, no line break at the end: as Burn's Config saves."""
    return _json(data, "\n")


def rounded(value: float, decimals: int = 2) -> str:
    """*value* for people, as Burn shows a metric: fixed, or scientific where it would lose its digits.

    ``97.25``, ``9.23e-2``, ``0.00e0``; negative numbers are scientific, as in Burn.
    """
    return scientific(value, decimals) if value <= 0.1 ** (decimals - 1) else fixed(value, decimals)


def fixed(value: float, decimals: int) -> str:
    """*value* with so many *decimals*; ``NaN``, ``inf``."""
    return "NaN" if math.isnan(value) else f"{value:.{decimals}f}"


def scientific(value: float, decimals: int) -> str:
    """*value* with one digit before the point and *decimals* after it: ``9.876e-3``, ``0.000e0``."""
    return "NaN" if math.isnan(value) else _short_exponent(f"{value:.{decimals}e}")


def printable(text: str) -> str:
    """*text* without what would move a terminal's cursor, or end a line."""
    return "".join(each if each.isprintable() else "�" for each in text)


def _with_tie_up(value: float, text: str) -> str:
    """Return *text*, the shortest of *value*, without an exponent and with its last digit up in a tie."""
    if "e" not in text:
        whole, _, fraction = text.partition(".")
        if fraction == "0":
            return whole
        # a multiple of 1 / 2**bits has as many decimals, the last of which is 5
        bits = float(value).as_integer_ratio()[1].bit_length() - 1
        if bits != len(fraction) + 1:
            return text
    short, exact = Decimal(text), Decimal(value)
    plain = format(short, "f")
    if format(exact, "f") != f"{plain}5":
        return plain
    place = Decimal((int(value < 0), (1,), int(short.as_tuple().exponent)))
    return format(short + place, "f")


def _short_exponent(text: str) -> str:
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def _json(data: Any, line: str) -> str:
    """*data* within a block whose lines begin with *line*: a line break and the block's indentation."""
    inner = f"{line}  "
    if isinstance(data, float):
        return json_number(data)
    if isinstance(data, Mapping):
        pairs = [f"{_key(key)}: {_json(value, inner)}" for key, value in data.items()]
        return f"{{{inner}{f',{inner}'.join(pairs)}{line}}}" if pairs else "{}"
    if isinstance(data, list | tuple):
        items = [_json(item, inner) for item in data]
        return f"[{inner}{f',{inner}'.join(items)}{line}]" if items else "[]"
    return json.dumps(data, ensure_ascii=False)


def _key(key: Any) -> str:
    return json.dumps(key if isinstance(key, str) else json.dumps(key), ensure_ascii=False)
