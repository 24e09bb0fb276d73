"""Messages for the errors of pydantic: the key, the expected value, the value found, and what to do."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from stages.contracts.config import USE, tag_of
from stages.contracts.errors import closest

MAX_SHOWN_CHARACTERS = 60
Location = tuple[int | str, ...]


def describe_errors(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Return a line for each mistake that *error* found in the input of *model*.

    Errors that follow from another error are left out: for a list with an invalid item, and for a required
    key that is misspelled.
    """
    errors: list[Any] = error.errors(include_url=False)
    locations = [detail["loc"] for detail in errors]
    unknown = [detail["loc"] for detail in errors if detail["type"] == "extra_forbidden"]
    lines = [
        _line(_find(model, detail["loc"]), detail)
        for detail in errors
        if not any(_is_inside(other, detail["loc"]) for other in locations)
        and not (detail["type"] == "missing" and _is_misspelled(model, detail["loc"], unknown))
    ]
    return list(dict.fromkeys(lines))  # pydantic reports each missing item of a list that is too short


def format_value(value: Any) -> str:
    """Return *value* in YAML notation, shortened if it is long."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not isfinite(value):
        return f".{value}" if str(value)[0] != "-" else f"-.{-value}"
    text = repr(value)
    text = text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"
    if isinstance(value, Mapping):
        return f"the mapping {text}"
    return f"the list {text}" if isinstance(value, list | tuple) else text


@dataclass(frozen=True)
class _Place:
    """A value in the input, found by a location of pydantic."""

    keys: Location
    """The location without the tags that pydantic adds for unions."""
    annotation: Any
    """The type of the value; None if it is unknown."""
    section: type[BaseModel]
    """The innermost model around the value."""

    @property
    def kinds(self) -> list[str]:
        """The kinds that the value may have."""
        return [tag_of(model) for model in _models(self.annotation)]

    @property
    def has_default(self) -> bool:
        """True if the key is optional."""
        field = self.section.model_fields.get(str(self.keys[-1])) if self.keys else None
        return field is not None and not field.is_required()


def _line(place: _Place, error: Mapping[str, Any]) -> str:
    keys = list(place.keys)
    if error["type"].startswith("union_tag_"):
        keys.append("kind")
    elif error["type"] == "invalid_key" or (error["type"] == "missing" and isinstance(keys[-1], int)):
        keys.pop()
    message = _message(place, error)
    return f"{'.'.join(map(str, keys)) or repr('')}: {message}" if keys else message


def _message(place: _Place, error: Mapping[str, Any]) -> str:
    value = error["input"]
    match error["type"]:
        case "value_error":
            return str(error["msg"]).removeprefix("Value error, ")
        case "extra_forbidden":
            names = list(place.section.model_fields)
            return f"unknown key.{closest(str(place.keys[-1]), names)} Known: {', '.join(names)}"
        case "missing":
            if isinstance(place.keys[-1], int):
                return f"must have more items; found {format_value(value)}"
            return "the key is missing. Set it"
        case "union_tag_not_found":
            return f"the key is missing. Set it to {_either(place.kinds)}"
        case "invalid_key":
            return f"keys must be strings; found {format_value(value)}"
        case "recursion_loop":
            return "must not contain itself: remove the alias"
        case "too_short" | "too_long":
            limit = "at least" if error["type"] == "too_short" else "at most"
            count = error["ctx"].get("min_length", error["ctx"].get("max_length"))
            items = f"{count} {'item' if count == 1 else 'items'}"
            return f"must have {limit} {items}; found {format_value(value)}"
        case _:
            return _expectation(place, error)


def _expectation(place: _Place, error: Mapping[str, Any]) -> str:
    """Return the expected value at *place* and the value found there."""
    value, hint = error["input"], ""
    match error["type"]:
        case "union_tag_invalid":
            value = value.get("kind") if isinstance(value, Mapping) else value
            return f"must be {_either(place.kinds)}; found {format_value(value)}{_advice(value, place.kinds)}"
        case "literal_error" | "enum":
            expected = f"must be {error['ctx']['expected']}"
            hint = _advice(value, re.findall("'(.*?)'", expected))
        case "model_type" | "model_attributes_type" | "dict_type":
            is_use = USE in place.kinds
            expected = "must be a name, or a mapping with a kind" if is_use else "must be a mapping"
            if isinstance(value, str) and (near := get_close_matches(value, place.kinds, n=1)):
                hint = f". Write {{kind: {near[0]}}}"
        case "tuple_type" | "list_type":
            expected = "must be a list"
            hint = f". Write [{value}]" if isinstance(value, str) and value else ""
        case "none_required":
            expected = "must be null"
        case _:
            expected = str(error["msg"]).replace("Input should be", "must be")
    if value is None and not hint and place.has_default:
        hint = ". Remove the key for its default"
    return f"{expected}; found {format_value(value)}{hint}"


def _advice(value: Any, names: Sequence[str]) -> str:
    question = closest(value, names) if isinstance(value, str) else ""
    return f".{question}" if question else ""


def _either(names: Sequence[str]) -> str:
    quoted = [repr(name) for name in names]
    return " or ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))


def _is_inside(location: Location, outer: Location) -> bool:
    return location != outer and location[: len(outer)] == outer


def _is_misspelled(model: type[BaseModel], location: Location, unknown: Sequence[Location]) -> bool:
    """Return whether an *unknown* key beside the missing one at *location* is close to its name."""
    names = list(_find(model, location).section.model_fields)
    beside = [other for other in unknown if other[:-1] == location[:-1]]
    return any(get_close_matches(str(other[-1]), names, n=1) == [location[-1]] for other in beside)


def _find(model: type[BaseModel], location: Location) -> _Place:
    keys: list[int | str] = []
    annotation: Any = model
    section = model
    for part in location:
        models = _models(annotation)
        tagged = [member for member in models if part in (tag_of(member), member.__name__)]
        if len(models) > 1 and tagged:
            annotation = tagged[0]
            continue
        keys.append(part)
        section = models[0] if models else section
        annotation = _inside(section, part) if models else _item(annotation, part)
    return _Place(tuple(keys), annotation, section)


def _inside(model: type[BaseModel], key: int | str) -> Any:
    field = model.model_fields.get(str(key))
    return field.annotation if field else None


def _item(annotation: Any, index: int | str) -> Any:
    """Return the type of an item of a list or a mapping."""
    for member in _members(annotation):
        inner = get_args(member)
        if inner and isinstance(index, int) and len(inner) > index and Ellipsis not in inner:
            return inner[index]
        if inner:
            return inner[-1] if isinstance(index, str) else inner[0]
    return None


def _models(annotation: Any) -> list[type[BaseModel]]:
    members = _members(annotation)
    return [member for member in members if isinstance(member, type) and issubclass(member, BaseModel)]


def _members(annotation: Any) -> list[Any]:
    """Return the members of a union; any other type is its own only member."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [member for inner in get_args(annotation) for member in _members(inner)]
    return [annotation]
