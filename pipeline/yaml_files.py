"""YAML files, read as DVC reads them; needs no config class, so that light commands start fast."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stages.contracts.errors import ParamsError


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
        raise ParamsError(f"{source} is not valid YAML: {error}") from error
