"""Removal of entries of DVC's run-cache that DVC would restore although a param has changed.

DVC names an entry by a hash of the deps, the params and the paths of the outputs. It leaves each key
``size`` and ``nfiles`` out of that hash because those of a file do not matter, and so leaves out params of
these names, such as ``load_data.source.size`` or an argument of a model, and would restore old outputs.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ruamel.yaml.error import YAMLError

from pipeline.project.params import PARAMS
from pipeline.project.snapshot import look_up
from pipeline.project.yaml_files import load_yaml

IGNORED_KEYS = frozenset({"size", "nfiles"})


def remove_stale_entries(cache: Path, params: Mapping[str, Any]) -> None:
    """Remove each entry in *cache* that differs from *params*, but only in keys that its name leaves out."""
    has_ignored = params != drop_ignored(params)
    for entry in (cache / "runs").glob("??/*/*"):
        with suppress(OSError, UnicodeDecodeError, YAMLError):
            text = entry.read_text(encoding="utf-8")
            section = text.partition("\nparams:\n")[2].partition("\nouts:\n")[0]
            is_affected = has_ignored or any(f"{key}:" in section for key in IGNORED_KEYS)
            if is_affected and is_stale(load_yaml(text), params):  # a cache may have thousands of entries
                entry.unlink(missing_ok=True)
                entry.parent.rmdir()  # DVC fails if it is empty; an error if it has another entry


def is_stale(entry: Mapping[str, Any], params: Mapping[str, Any]) -> bool:
    """Return whether *entry* differs from *params*, but only in keys that its name leaves out."""
    recorded = (entry.get("params") or {}).get(str(PARAMS)) or {}
    current = {key: look_up(params, key) for key in recorded}
    return recorded != current and drop_ignored(recorded) == drop_ignored(current)


def drop_ignored(value: Any) -> Any:
    """Return *value* without the keys that DVC leaves out of the hash of an entry."""
    if isinstance(value, Mapping):
        return {key: drop_ignored(item) for key, item in value.items() if key not in IGNORED_KEYS}
    return [drop_ignored(item) for item in value] if isinstance(value, list) else value
