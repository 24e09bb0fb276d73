"""The key of a run, a hash of everything that can change a number in it, and the differences of two keys."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

KEY_LENGTH = 16
KEY = re.compile(rf"[0-9a-f]{{{KEY_LENGTH}}}")
_HASH = re.compile(r"[0-9a-f]{32,}")
_MAX_HASH_LENGTH = 12
"""Most characters of a hash that are printed."""
_MAX_VALUE_LENGTH = 60
"""Most characters of any other value."""


def run_key(entries: Mapping[str, Any]) -> str:
    """Return the key of a run, 16 hexadecimal digits: the hash of *entries*.

    *entries* are values that JSON has. The order of their keys has no effect.
    """
    return hashlib.sha256(_canonical(entries).encode()).hexdigest()[:KEY_LENGTH]


def plain(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return *entries* as JSON reads them back: tuples as lists, keys as strings."""
    return dict(json.loads(_canonical(entries)))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line such as ``params.batch_size: 32 → 64`` for each entry that differs, sorted."""
    before, after = leaves(old), leaves(new)
    changed = [
        name
        for name in before.keys() | after.keys()
        if (name in before) != (name in after) or _json(before.get(name)) != _json(after.get(name))
    ]
    return [f"{name}: {_side(before, name)} → {_side(after, name)}" for name in sorted(changed)]


def leaves(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted name to value, as ``params.metrics[1].kind``; empty maps and lists are values."""
    return dict(_leaves("", plain(entries)))


def format_value(value: Any) -> str:
    """Return *value* as JSON for messages; hashes and long values are shortened."""
    if isinstance(value, str) and _HASH.fullmatch(value):
        return f"{value[:_MAX_HASH_LENGTH]}…"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 1]}…"


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and (value or not name):
        for key, each in value.items():
            yield from _leaves(f"{name}.{key}" if name else key, each)
    elif isinstance(value, list) and value:
        for place, each in enumerate(value):
            yield from _leaves(f"{name}[{place}]", each)
    else:
        yield name, value


def _side(values: Mapping[str, Any], name: str) -> str:
    return format_value(values[name]) if name in values else "absent"


def _canonical(entries: Mapping[str, Any]) -> str:
    return _json(dict(entries))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
