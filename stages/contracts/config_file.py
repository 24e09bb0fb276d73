"""A config as a JSON file, written and read as Burn's ``Config`` is.

Fields stand in the order they are declared in, with no line break after the last. A section told apart
by ``kind`` keeps it as a key, as in params.yaml. A Rust enum, which Burn tags from outside as in
``{"Norm": 1.0}``, is a section with one field of the variant's name.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from stages.contracts.errors import ParamsError
from stages.contracts.files import write_text
from stages.contracts.text import to_json
from stages.contracts.validation import describe_errors

Model = TypeVar("Model", bound=BaseModel)


def config_text(config: BaseModel) -> str:
    """*config* as `save_config` writes it. Burn's ``Display`` of a config is the same."""
    return to_json(config.model_dump(mode="json", by_alias=True))


def save_config(config: BaseModel, path: Path) -> None:
    """Write *config* to *path*, whole or not at all."""
    write_text(path, config_text(config))


def load_config(kind: type[Model], path: Path) -> Model:
    """The *kind* that `save_config`, or Burn, wrote to *path*.

    Every field must be there, even one that has a default; a key that is no field is left out. Raises
    `ParamsError`, which names all that is missing, or all that does not fit.
    """
    data = _parsed(path)
    missing: list[str] = []
    fitted = _section(kind, data, "", missing)
    if missing:
        lines = [f"{path} lacks fields of {kind.__name__}, and each must be there, even if it has a default:"]
        raise ParamsError(
            "\n".join([*lines, *(f"  {each}" for each in missing), "add them, or save it again"])
        )
    try:
        return kind.model_validate_json(to_json(fitted))
    except ValidationError as error:
        lines = [f"  {line}" for line in describe_errors(error, kind)]
        raise ParamsError("\n".join([f"{path} is no {kind.__name__}:", *lines])) from None


def _parsed(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ParamsError(f"{path} cannot be read ({error.strerror}): save a config there first") from error
    except ValueError as error:
        raise ParamsError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ParamsError(f"{path} holds {str(data)[:40]!r}, and a config is a map of fields")
    return data


def _section(model: type[BaseModel], data: dict[str, Any], where: str, missing: list[str]) -> dict[str, Any]:
    """*data* without the keys that *model* does not know; the fields it lacks are added to *missing*."""
    fitted = dict(data) if model.model_config.get("extra") == "allow" else {}
    for name, field in model.model_fields.items():
        key = name if name in data else field.alias or name
        if key in data:
            fitted[key] = _value(field.annotation, data[key], f"{where}{key}.", missing)
        else:
            missing.append(f"{where}{key}")
    return fitted


def _value(annotation: Any, data: Any, where: str, missing: list[str]) -> Any:
    """*data* with every section in it as `_section` makes it."""
    members = list(_members(annotation))
    models = [each for each in members if isinstance(each, type) and issubclass(each, BaseModel)]
    if isinstance(data, dict) and models:
        return _section(max(models, key=lambda model: _likeness(model, data)), data, where, missing)
    for member in members:
        origin, inner = get_origin(member), get_args(member)
        if not (inner and isinstance(origin, type)):
            continue
        if isinstance(data, dict) and issubclass(origin, Mapping):
            return {key: _value(inner[-1], each, f"{where}{key}.", missing) for key, each in data.items()}
        if isinstance(data, list) and issubclass(origin, Collection) and not issubclass(origin, Mapping):
            kinds = inner if len(inner) == len(data) and Ellipsis not in inner else [inner[0]] * len(data)
            pairs = zip(kinds, data, strict=True)
            return [_value(each, item, f"{where}{n}.", missing) for n, (each, item) in enumerate(pairs)]
    return data


def _members(annotation: Any) -> Collection[Any]:
    """What a union may be; anything else is its own only member."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [member for each in get_args(annotation) for member in _members(each)]
    return [annotation]


def _likeness(model: type[BaseModel], data: Mapping[str, Any]) -> tuple[bool, int]:
    """How near *data* comes to a *model*: whether what it is told apart by fits, then the keys they share."""
    literals = {
        name: get_args(field.annotation)
        for name, field in model.model_fields.items()
        if get_origin(field.annotation) is Literal
    }
    fits = all(data.get(name) in allowed for name, allowed in literals.items())
    return fits, len(model.model_fields.keys() & data.keys())
