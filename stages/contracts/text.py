"""Numbers, sizes, durations and JSON as text, in one form each so that equal runs give equal bytes."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

AGE_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
SURELY_EXACT = 16
"""Up to this length, 15 digits and a point, the shortest text of a float cannot end in a tie."""
_WORD = re.compile(r"[^\s\"']+")
_LOGIN = re.compile(
    r"([a-z][a-z0-9+.-]{0,30})://([^\s\"'/?#:]*:(?!\d+[/?#])[^\s\"']*|[^\s\"'/?#]*)@", re.IGNORECASE
)
"""Matches the scheme and the login of a URL; the password may have characters that should be escaped.

The end of the scheme is enough. With any length, each letter of a text would be searched to the end.
"""
_SECRET_ARGUMENT = re.compile(r"([?&](?:password|token|access_token|sig|secret)=)[^&\s\"']+", re.IGNORECASE)


def number(value: float) -> str:
    """Return *value* as Rust's ``f64`` displays it: the shortest digits that read back the same, no exponent.

    ``100`` and ``0`` have no fraction, ``1e-7`` is ``0.0000001``; ``NaN``, ``inf``, ``-inf``. If *value* is
    exactly between two such texts, Rust rounds away from 0, and Python to the even digit.
    """
    text = repr(float(value))
    if "e" in text:
        return _round_tie_up(value, text)
    if text.endswith(".0"):
        return text[:-2]
    if len(text) <= SURELY_EXACT:
        return "NaN" if text == "nan" else text
    # an odd multiple of 1 / 2**n has n decimals, and the last one is 5
    is_between = math.ldexp(value, len(text) - text.index(".")) % 2 == 1
    return _round_tie_up(value, text) if is_between else text


def json_number(value: float) -> str:
    """Return *value* as in Burn's JSON: ``1.0``, ``0.00001``; below that, and from 1e16, ``1e-6``, ``1e16``.

    NaN and infinity, which JSON does not have, are the strings ``"NaN"``, ``"inf"`` and ``"-inf"``. (Burn
    writes ``null``, which it cannot read back.)
    """
    if not math.isfinite(value):
        return f'"{number(value)}"'
    text = repr(float(value))
    if "e" not in text:
        return text
    if 1e-5 <= abs(value) < 1e-4:
        return number(value)
    return _short_exponent(text)


def parse_number(text: str) -> float | None:
    """Return the number in *text*; None if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return None


def to_json(data: Any) -> str:
    """Return *data* as JSON, indented by two spaces, in the order of its keys, as Burn saves a config."""
    return _json(data, "\n")


def format_rounded(value: float, decimals: int = 2) -> str:
    """Return *value* as Burn displays a metric: fixed, or scientific if fixed notation would lose its digits.

    ``97.25``, ``9.23e-2``, ``0.00e0``; negative numbers are scientific, as in Burn.
    """
    return scientific(value, decimals) if value <= 0.1 ** (decimals - 1) else format_fixed(value, decimals)


def format_fixed(value: float, decimals: int) -> str:
    """Return *value* with *decimals* digits after the point; ``NaN``, ``inf``."""
    return "NaN" if math.isnan(value) else f"{value:.{decimals}f}"


def scientific(value: float, decimals: int) -> str:
    """Return *value* with one digit before the point and *decimals* after it: ``9.876e-3``, ``0.000e0``."""
    return "NaN" if math.isnan(value) else _short_exponent(f"{value:.{decimals}e}")


def format_megabytes(nbytes: int) -> str:
    """Return *nbytes* in units of 10^6 bytes: ``1,234.5 MB``."""
    return f"{nbytes / 1e6:,.1f} MB"


def format_size(nbytes: int) -> str:
    """Return *nbytes* in the largest unit of 1024 that fits: ``512 B``, ``1.5 KiB``, ``2.0 GiB``."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(size, 1) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_age(seconds: float) -> str:
    """Return *seconds* rounded down to one unit: ``7 s``, ``3 min``, ``2 h``, ``5 d``."""
    unit, length = next(((unit, length) for unit, length in AGE_UNITS if seconds >= length), AGE_UNITS[-1])
    return f"{seconds // length:.0f} {unit}"


def format_duration(seconds: float) -> str:
    """Return *seconds* in at most two units: ``7.2 s``, ``3 min 5 s``, ``2 h 3 min``."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def join_names(names: Iterable[str], limit: int) -> str:
    """Return the first *limit* of *names* for a message, and the number of the others."""
    listed = list(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more


def replace_unprintable(text: str, *, keep: str = "") -> str:
    """Return *text* with control characters, line breaks and invisible characters replaced, except *keep*."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or character in keep else "�" for character in text)


def hide_passwords(text: str) -> str:
    """Return *text* with ``***`` in place of each password in a URL.

    ``https://user:secret@host`` becomes ``https://user:***@host``. A user name alone is a token in
    ``https://token@host``, but not in ``ssh://git@host``. Arguments such as ``?password=`` are hidden too.
    """
    if "://" not in text:
        return text
    return _SECRET_ARGUMENT.sub(r"\1***", _WORD.sub(_hide_logins, text))


def _hide_logins(word: re.Match[str]) -> str:
    before, at, after = word[0].rpartition("@")  # without one, each :// would be searched to the end
    return _LOGIN.sub(_hide_login, before + at) + after


def _hide_login(match: re.Match[str]) -> str:
    scheme, login = match.groups()
    user, has_password, _ = login.partition(":")
    if has_password:
        return f"{scheme}://{user}:***@"
    return f"{scheme}://{'***' if scheme.lower().startswith('http') else user}@"


def _round_tie_up(value: float, text: str) -> str:
    """Return *text*, the shortest text of *value*, without an exponent and with a tie rounded up."""
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
    """Return *data* as JSON; *line* is a line break and the indentation of the surrounding block."""
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
