"""The rule for overrides of a deployment, which anyone who reaches Prefect's API can send."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.project.git import try_git
from pipeline.project.params_edit import PARAMS, override_params
from pipeline.project.yaml_files import parse_yaml, read_yaml
from stages.contracts.errors import ParamsError

ALLOW_CODE = "LEARNER_ALLOW_CODE"
"""Environment variable that allows any override; ``learner serve --allow-code`` sets it."""
LOADER_KEY = "load_data.source.kind"
DEVICE_KEY = "fit.device"
_FILE_KEY = re.compile(r"(^|_)(path|file|dir|directory|folder|root|url|uri|inputs|targets|labels|tokenizer)$")
"""Matches the last part of the keys whose value is a file or an address."""
_REFERENCE_SIGNS = re.compile(r"[/\\:~]")
"""Matches a sign that import paths, paths of files or addresses have, and other texts do not need."""


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise `ParamsError` if *overrides* are not valid, or set code or a file that is not committed.

    The committed params are those of git's HEAD, or params.yaml itself if git does not track it. With
    `ALLOW_CODE`, any valid override may be set.
    """
    is_restricted = not os.environ.get(ALLOW_CODE)
    interpolated = [override for override in overrides if "${" in override]
    if is_restricted and interpolated:  # also of environment variables, which an error would show
        raise _build_error(f"use the interpolation {interpolated[0]!r}")
    edited = parse_yaml(override_params(overrides), PARAMS)
    if not is_restricted or not overrides:
        return
    before = set(_list_texts(read_yaml(PARAMS)))
    committed = {text for _, text in _list_texts(_read_committed())}
    for key, text in _list_texts(edited):
        if (key, text) not in before and text not in committed and _is_reference(key, text):
            raise _build_error(f"set {key} to {text!r}, which the committed {PARAMS} does not have")


def _build_error(problem: str) -> ParamsError:
    return ParamsError(
        f"the overrides of this deployment {problem}. Whoever reaches the API could run code with it. Commit "
        f"it in {PARAMS}, or allow it with `learner serve --allow-code`, or {ALLOW_CODE}=1 for a worker"
    )


def _read_committed() -> Any:
    done = try_git(Path(), "show", f"HEAD:./{PARAMS}")
    return read_yaml(PARAMS) if done.returncode else parse_yaml(done.stdout, f"{PARAMS} of HEAD")


def _list_texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in *value*, at any depth, with its dotted key; elements of a list have its key."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _list_texts(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _list_texts(item, key)
    elif isinstance(value, str):
        yield key, value


def _is_reference(key: str, text: str) -> bool:
    if key == DEVICE_KEY:
        return False
    is_file = _FILE_KEY.search(key.rpartition(".")[2]) is not None
    return key == LOADER_KEY or is_file or _REFERENCE_SIGNS.search(text) is not None
