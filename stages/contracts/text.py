"""How numbers and JSON are written, so that the same run is the same bytes."""

import json
import math
from decimal import Decimal
from typing import Any


def number(value: float) -> str:
    """*value* as Rust's ``f64`` prints it: shortest digits that read back the same, never an exponent.

    ``100`` and ``0`` stand without a fraction, ``1e-7`` is ``0.0000001``; ``NaN``, ``inf``, ``-inf``.
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = repr(value)
    if "e" in text:
        text = format(Decimal(text), "f")
    return text.removesuffix(".0")


def to_json(data: Any) -> str:
    """*data* with keys in the order given, two spaces, no line break at the end: as Burn's Config saves."""
    return json.dumps(data, indent=2, ensure_ascii=False)


def rounded(value: float, decimals: int = 2) -> str:
    """*value* for people, as Burn shows a metric: fixed, or scientific where it would lose its digits.

    ``97.25``, ``9.23e-2``, ``0.00e0``; negative numbers are scientific, as in Burn.
    """
    if math.isnan(value):
        return "NaN"
    if value > 0.1 ** (decimals - 1) or math.isinf(value):
        return f"{value:.{decimals}f}"
    mantissa, exponent = f"{value:.{decimals}e}".split("e")
    return f"{mantissa}e{int(exponent)}"
