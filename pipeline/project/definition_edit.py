"""An edit of dvc.yaml that adds deps to its stages, and changes no other byte."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipeline.project.dependencies import list_missing_deps
from pipeline.project.params import Params
from pipeline.project.yaml_files import parse_yaml
from stages.contracts.errors import ParamsError
from stages.system.files import write_text

DEFINITION = Path("dvc.yaml")


def fix_deps(params: Params, path: Path = DEFINITION) -> Iterator[str]:
    """Add the missing deps to *path*, and yield a line for each.

    Raises `ParamsError`, and writes nothing, if the deps of a stage are in a form that cannot be edited.
    """
    missing = list_missing_deps(params, path.parent)
    if not missing:
        return
    write_text(path, add_deps(path.read_bytes().decode(), missing))
    for stage, files in missing.items():
        yield from (f"{path}: added {file} to the deps of {stage}" for file in files)


def add_deps(text: str, missing: Mapping[str, Sequence[Path]]) -> str:
    """Return *text*, that of a dvc.yaml, with *missing*, paths by stage, in the deps of the stages.

    Raises `ParamsError` if the deps of a stage are an alias or in another form that cannot be edited.
    """
    for stage, files in missing.items():
        names = [file.as_posix() for file in files]
        expected = _set_deps(parse_yaml(text, DEFINITION), stage, names)
        text = _insert(text, stage, names)
        if not _is_equal(text, expected):
            lines = "".join(f"\n      - {name}" for name in names)
            raise ParamsError(f"{DEFINITION}: the deps of {stage} cannot be edited. Add these lines:{lines}")
    return text


def _is_equal(text: str, expected: Any) -> bool:
    with suppress(ParamsError):
        return bool(parse_yaml(text, DEFINITION) == expected)
    return False


def _set_deps(content: dict[str, Any], stage: str, names: Sequence[str]) -> dict[str, Any]:
    expected = deepcopy(content)
    entry = expected["stages"][stage]
    entry["deps"] = [*(entry.get("deps") or []), *names]
    return expected


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
