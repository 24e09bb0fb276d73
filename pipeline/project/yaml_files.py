"""YAML files, read as DVC reads them, without the config classes, which take long to import."""

import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import ruamel.yaml
from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode, SequenceNode
from ruamel.yaml.tag import Tag

from stages.contracts.errors import ParamsError
from stages.system.files import read_regular

_NATIVE: Any = getattr(ruamel.yaml, "CBaseLoader", None)
"""ruamel.yaml's binding to libyaml; None without ruamel.yaml.clib, which DVC brings on CPython."""
_PLAIN, _QUOTED, _COLLECTION = Tag(suffix="plain"), Tag(suffix="quoted"), Tag(suffix="collection")
"""Tags of nodes without an explicit tag, compared by identity."""
_TYPED = frozenset("-+0123456789.tTfFnN~<=")
"""First characters of the plain scalars that YAML 1.2 may read as another type than a string."""
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_HASH = re.compile(r"[0-9be]*[acdf][0-9a-f]*(\.dir)?")
"""Hashes as DVC writes them; one with only digits, b and e could be a number."""
MAX_YAML_BYTES = 1 << 26
"""Largest YAML file that is read; a dvc.lock has about 100 bytes for each output."""
MAX_VALUES = 1 << 20
"""Most values of a document with aliases, each of which may stand for many values."""
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


def read_definition(path: Path = Path("dvc.yaml")) -> dict[str, Any]:
    """Return the content of the dvc.yaml *path*.

    Raises as `read_mapping` does, and `ParamsError` if the stages are not mappings.
    """
    content = read_mapping(path)
    stages = content.get("stages") or {}
    if not isinstance(stages, dict) or not all(isinstance(each, dict) for each in stages.values()):
        raise ParamsError(
            f"{path}: stages must be a mapping of names to mappings with a cmd; found {str(stages)[:60]!r}"
        )
    return content


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
    """Return the content of *text*, equal to that of ruamel.yaml's safe reader, but four times as fast.

    ruamel.yaml's binding to libyaml splits *text* into nodes, and this module makes plain data of them. A
    document with anything but mappings, lists and untagged scalars, or with an error, is read by ruamel.yaml
    itself. Raises its `YAMLError` if *text* is not valid YAML.
    """
    if _NATIVE and not (text.startswith("%") or "\n%" in text):  # a directive can change the version
        try:
            return _value(_root(text), set())
        except (_UnusualError, YAMLError, ValueError, RecursionError):
            pass  # ruamel.yaml reads it, or reports the error
    try:
        content = YAML(typ="safe").load(text)
        check_aliases(text, content)
    except (ValueError, KeyError) as error:  # a scalar without the type of its form or tag
        raise YAMLError(f"a value cannot be read: {error}") from error
    except RecursionError as error:
        raise YAMLError("it is nested too deeply") from error
    return content


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


class _UnusualError(Exception):
    """A document that only ruamel.yaml reads."""


class _NodeReader(_NATIVE or object):  # type: ignore[misc]
    """ruamel.yaml's binding to libyaml, without the rules for types, which take most of its time."""

    def resolve(self, kind: type, value: str | None, implicit: Any) -> Tag:
        """Return the tag of a node that has no explicit tag."""
        del value
        if kind is not ScalarNode:
            return _COLLECTION
        return _PLAIN if implicit[0] else _QUOTED


def _root(text: str) -> Any:
    reader = _NodeReader(text)
    try:
        return reader.get_single_node()
    finally:
        reader.dispose()


def _value(node: Any, seen: set[int]) -> Any:
    """Return the plain data of *node*; *seen* has the ids of earlier collections, to detect an alias.

    Raises `_UnusualError` if only ruamel.yaml can read it.
    """
    if node is None:  # no document
        return None
    if isinstance(node, ScalarNode):
        return _scalar(node)
    if node.ctag is not _COLLECTION or id(node) in seen:
        raise _UnusualError
    seen.add(id(node))
    if isinstance(node, SequenceNode):
        return [_value(each, seen) for each in node.value]
    content: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = _scalar(key_node)
        if key in content or key == "<<":  # a duplicate or a merge
            raise _UnusualError
        content[key] = _value(value_node, seen)
    return content


def _scalar(node: Any) -> Any:
    if node.ctag is _QUOTED:
        return node.value
    if node.ctag is not _PLAIN:
        raise _UnusualError
    return _plain(node.value)


def _plain(text: str) -> Any:
    """Return the value of the plain scalar *text*."""
    if text and (text[0] not in _TYPED or _HASH.fullmatch(text)):
        return text
    return int(text) if _INTEGER.fullmatch(text) else _parse_typed(text)


@lru_cache(maxsize=4096)
def _parse_typed(text: str) -> Any:
    """Return the value that ruamel.yaml gives the plain scalar *text*."""
    reader = _scalar_reader()
    tag = reader.resolver.resolve(ScalarNode, text, (True, False))
    return reader.constructor.construct_object(ScalarNode(tag, text))


@cache
def _scalar_reader() -> YAML:
    return YAML(typ="safe", pure=True)


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
