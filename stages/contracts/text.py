"""How numbers and JSON are written, so that the same run is the same bytes."""

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any


def number(value: float) -> str:
    """*value* as Rust's ``f64`` prints it: shortest digits that read back the same, never an exponent.

    ``100`` and ``0`` stand without a fraction, ``1e-7`` is ``0.0000001``; ``NaN``, ``inf``, ``-inf``.
    """
    text = repr(float(value))
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
