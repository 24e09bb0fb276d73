"""YAML files, read as DVC reads them; needs no config class, so that light commands start fast."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from stages.contracts.errors import ParamsError

TAG = "could not determine a constructor for the tag "
"""Begins ruamel's message about a tag that is not YAML's own."""


def read_yaml(path: Path) -> Any:
    """Return the content of *path*, read as YAML 1.2, in which ``1e-4`` is a number.

    Raises `ParamsError` if the file is missing or not valid YAML.
    """
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), path)
    except OSError as error:
        raise ParamsError(
            f"{path} cannot be read ({error.strerror}): start in the folder that has it"
        ) from error
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path} is not valid YAML: {error}") from error


def parse_yaml(text: str, source: Path | str) -> Any:
    """Return the content of *text*, read from *source*. Raises `ParamsError` if it is not valid YAML."""
    try:
        return YAML(typ="safe").load(text) or {}
    except YAMLError as error:
        raise ParamsError(f"{source} is not valid YAML: {_problem(error)}") from error
    except (ValueError, KeyError) as error:  # a scalar that is not of the type that its form or tag says
        raise ParamsError(f"{source} is not valid YAML: a value cannot be read: {error}") from error
    except RecursionError as error:
        raise ParamsError(f"{source} is not valid YAML: it is nested too deeply") from error


def _problem(error: YAMLError) -> str:
    """Return what is wrong in one line, with the line and column of the file."""
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
