"""The key of a run: a hash of everything that can change a number in it, and what two of them differ in."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

KEY_LENGTH = 16
KEY = re.compile(rf"[0-9a-f]{{{KEY_LENGTH}}}")
_HASH = re.compile(r"[0-9a-f]{32,}")
_SHOWN_HASH = 12
"""Characters of a hash that are shown."""
_SHOWN_VALUE = 60
"""Characters of any other value."""


def run_key(entries: Mapping[str, Any]) -> str:
    """16 characters that another version, another param or another input changes.

    *entries* are plain values: what JSON has. The order of their keys does not matter.
    """
    return hashlib.sha256(_canonical(entries).encode()).hexdigest()[:KEY_LENGTH]


def plain(entries: Mapping[str, Any]) -> dict[str, Any]:
    """*entries* as they come back from JSON: lists for tuples, texts for keys."""
    return dict(json.loads(_canonical(entries)))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """A line like ``params.batch_size: 32 → 64`` for each entry that is not the same in both, sorted."""
    before, after = leaves(old), leaves(new)
    changed = [
        name
        for name in before.keys() | after.keys()
        if (name in before) != (name in after) or _json(before.get(name)) != _json(after.get(name))
    ]
    return [f"{name}: {_side(before, name)} → {_side(after, name)}" for name in sorted(changed)]


def leaves(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted name to value, as in ``params.metrics[1].kind``; an empty map or list is a value too."""
    return dict(_leaves("", plain(entries)))


def shown(value: Any) -> str:
    """*value* for people: as JSON, and short."""
    if isinstance(value, str) and _HASH.fullmatch(value):
        return f"{value[:_SHOWN_HASH]}…"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_VALUE else f"{text[: _SHOWN_VALUE - 1]}…"


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
    return shown(values[name]) if name in values else "absent"


def _canonical(entries: Mapping[str, Any]) -> str:
    return _json(dict(entries))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
