"""YAML files, read as DVC reads them, without the config classes, which take long to import.

An edit of dvc.yaml adds deps to its stages, and changes no other byte.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from stages.contracts.errors import ParamsError
from stages.system.files import read_regular

DEFINITION = Path("dvc.yaml")
MAX_YAML_BYTES = 1 << 26
"""Largest YAML file that is read; a dvc.lock has about 100 bytes for each output."""
MAX_VALUES = 1 << 20
"""Most values of a document with aliases, each of which may stand for many values."""
MAX_DIGITS = 1000
"""Most digits of an integer that is not decimal; Python prints no more than 4,300 decimal digits."""
_LONG_INTEGER = re.compile(rf"0[box][0-9a-fA-F_]{{{MAX_DIGITS},}}")
TAG = "could not determine a constructor for the tag "
"""Beginning of ruamel.yaml's message about an unsupported tag."""


def read_yaml(path: Path) -> Any:
    """Return the content of *path*, read as YAML 1.2, in which ``1e-4`` is a number.

    Raises `ParamsError` if the file is missing or not valid YAML.
    """
    try:
        return parse_yaml(read_regular(path, MAX_YAML_BYTES).decode("utf-8"), path)
    except OSError as error:
        raise ParamsError(
            f"{path} cannot be read ({error.strerror}). Run the command in the folder that has it"
        ) from error
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path} is not valid YAML: {error}") from error


def read_definition() -> dict[str, Any]:
    """Return the content of dvc.yaml.

    Raises as `read_mapping` does, and `ParamsError` if the stages are not mappings.
    """
    content = read_mapping(DEFINITION)
    stages = stages_of(content)
    if not isinstance(stages, dict) or not all(isinstance(stage, dict) for stage in stages.values()):
        raise ParamsError(
            f"dvc.yaml: stages must be a mapping of names to mappings with a cmd; found {str(stages)[:60]!r}"
        )
    return content


def stages_of(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the stages in *content*, that of a dvc.yaml or a dvc.lock."""
    return content.get("stages") or {}


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the content of *path*. Raises as `read_yaml` does, and `ParamsError` if it is not a mapping."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise ParamsError(f"{path} must be a mapping of keys to values; found {str(content)[:60]!r}")
    return content


def parse_yaml(text: str, source: Path | str) -> Any:
    """Return the content of *text*, read from *source*. Raises `ParamsError` if it is not valid YAML."""
    try:
        return load_yaml(text) or {}
    except YAMLError as error:
        raise ParamsError(f"{source} is not valid YAML: {_problem(error)}") from error


def load_yaml(text: str) -> Any:
    """Return the content of *text*, read as DVC reads it. Raises `YAMLError` if it is not valid YAML."""
    if _LONG_INTEGER.search(text):
        raise YAMLError(f"an integer has more than {MAX_DIGITS:,} digits")
    try:
        content = deepcopy(_parse(text))
        check_aliases(text, content)
    except (ValueError, KeyError) as error:  # a scalar without the type of its form or tag
        raise YAMLError(f"a value cannot be read: {error}") from error
    except RecursionError as error:
        raise YAMLError("it is nested too deeply") from error
    return content


@lru_cache(maxsize=16)
def _parse(text: str) -> Any:
    """Return the content of *text*, which a command reads several times; a copy takes a hundredth of it."""
    return YAML(typ="safe").load(text)


def check_aliases(text: str, content: Any) -> None:
    """Raise `YAMLError` if *content* of *text* has more than `MAX_VALUES` values, counted at each alias."""
    if "*" not in text:
        return
    counts: dict[int, int] = {}

    def count(value: Any) -> int:
        if not isinstance(value, dict | list):
            return 1
        if id(value) not in counts:
            counts[id(value)] = 1  # found below if the value contains itself
            below = value.values() if isinstance(value, dict) else value
            counts[id(value)] = 1 + sum(map(count, below))
        return counts[id(value)]

    if count(content) > MAX_VALUES:
        raise YAMLError(f"its aliases stand for more than {MAX_VALUES:,} values")


def _problem(error: YAMLError) -> str:
    """Return the message of *error* in one line, with the line and column in the file."""
    if not isinstance(error, MarkedYAMLError):
        return " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = str(error.problem or error.context)
    if isinstance(error, DuplicateKeyError):
        return f"{where}{problem}. Remove one of the two"
    if isinstance(error, ConstructorError) and problem.startswith(TAG):
        tag = problem.removeprefix(TAG).replace("tag:yaml.org,2002:", "!!")
        return (
            f"{where}the tag {tag} is not supported. Remove it; "
            "name a class of your own by its import path, as in kind: 'my_lab.parts:Name'"
        )
    return f"{where}{problem}"


def add_deps(text: str, missing: Mapping[str, Sequence[Path]]) -> str:
    """Return *text*, that of a dvc.yaml, with *missing*, paths by stage, in the deps of the stages.

    Raises `ParamsError` if the deps of a stage are an alias or in another form that cannot be edited.
    """
    for stage, files in missing.items():
        names = [file.as_posix() for file in files]
        expected, edited = parse_yaml(text, "dvc.yaml"), None
        entry = expected["stages"][stage]
        entry["deps"] = [*(entry.get("deps") or []), *names]
        text = _insert(text, stage, names)
        with suppress(ParamsError):
            edited = parse_yaml(text, "dvc.yaml")
        if edited != expected:
            lines = "".join(f"\n      - {name}" for name in names)
            raise ParamsError(f"dvc.yaml: the deps of {stage} cannot be edited. Add these lines:{lines}")
    return text


def _insert(text: str, stage: str, names: Sequence[str]) -> str:
    """Return *text* with a line for each of *names* after the last dep of *stage*."""
    lines = text.splitlines(keepends=True)
    newline = "\r\n" if lines[0].endswith("\r\n") else "\n"
    entry = YAML().load(text)["stages"][stage]
    deps = entry.get("deps")
    if deps and deps.fa.flow_style():
        row, column = deps.lc.line, deps.lc.col
        end = lines[row].find("]", column)  # if it is in another line, the text is not valid below
        lines[row] = f"{lines[row][:end].rstrip()}, {', '.join(map(_quote, names))}{lines[row][end:]}"
    elif deps:
        row = _last_row(lines, deps.lc.item(len(deps) - 1)[0], deps.lc.col)
        lines[row] = lines[row].rstrip("\r\n") + newline
        lines[row + 1 : row + 1] = [f"{' ' * deps.lc.col}- {_quote(name)}{newline}" for name in names]
    elif "deps" not in entry:
        row, column = entry.lc.key(next(iter(entry)))
        added = [f"{' ' * (column + 2)}- {_quote(name)}{newline}" for name in names]
        lines[row:row] = [f"{' ' * column}deps:{newline}", *added]
    return "".join(lines)


def _last_row(lines: list[str], row: int, column: int) -> int:
    """Return the last row of the item that begins in *row*, behind a dash in *column*."""
    for following in range(row + 1, len(lines)):
        text = lines[following].strip()
        if text and len(lines[following]) - len(lines[following].lstrip()) <= column:
            return row
        if text and not text.startswith("#"):
            row = following
    return row


def _quote(name: str) -> str:
    """Return *name* as a scalar of YAML."""
    is_plain = all(character.isalnum() or character in "._/-" for character in name) and name[0] not in "-"
    return name if is_plain else "'" + name.replace("'", "''") + "'"
