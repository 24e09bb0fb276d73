"""The base of all sections of params.yaml, and references to parts that users may supply."""

from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetPydanticSchema, model_validator
from pydantic_core import core_schema

from stages.contracts.errors import ParamsError
from stages.contracts.fields import Text

USE = "use"
"""The tag of a part by its import path in a union by kind."""
MAX_DEPTH = 100
"""Limit of nested lists and mappings in an argument, which may contain itself through a YAML alias."""


class Config(BaseModel):
    """A section of params.yaml: frozen, and with an error for unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __new__(cls, *values: Any, **_: Any) -> Self:
        """Create an instance. Raises `ParamsError` for *values* without names, which Burn's users write."""
        if values:
            names = [name for name in cls.model_fields if name != "kind"]
            required = [name for name in names if cls.model_fields[name].is_required()]
            first = names[0] if isinstance(values[0], int | float) else [*required, *names][0]
            raise ParamsError(
                f"{cls.__name__} takes its options by name, and found {values}. Write, for example, "
                f"{cls.__name__}({first}={values[0]!r}, …) with names of {', '.join(names)}"
            )
        return super().__new__(cls)


class Use(BaseModel):
    """A part with its arguments: ``accuracy`` or ``{kind: "my_lab.nets:Wide", width: 64}``.

    Every key except ``kind`` is an argument of the part; an argument that is null is not passed.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: Text
    """A built-in name, a name registered as an entry point, or ``package.module:Name``."""

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_name(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_arguments(self) -> Self:
        """Reject values that JSON cannot store, since ``learner.json`` would contain different ones."""
        for name, value in (self.model_extra or {}).items():
            if not _is_plain(value):
                raise ValueError(
                    f"the argument {name!r} must be null, a boolean, a finite number, a string, or a list or "
                    f"a mapping of these; found {value!r:.60}"
                )
        return self


def _is_plain(value: Any, depth: int = 0) -> bool:
    match value:
        case float():
            return isfinite(value)
        case list() | tuple():
            items = list(value)
        case dict() if all(isinstance(key, str) for key in value):
            items = list(value.values())
        case _:
            return value is None or isinstance(value, str | int)
    return depth < MAX_DEPTH and all(_is_plain(item, depth + 1) for item in items)


def arguments_beside(config: BaseModel) -> dict[str, Any]:
    """Return the keys of *config* that its class does not have, without those that are null."""
    return {key: value for key, value in (config.model_extra or {}).items() if value is not None}


def arguments_of(config: BaseModel) -> dict[str, Any]:
    """Return the arguments of a part: all keys except ``kind`` whose value is not null."""
    return {key: value for key, value in config if key != "kind" and value is not None}


def kind_of(value: Any) -> str | None:
    """Return the ``kind`` of raw data or of a config; None if it has none."""
    match value:
        case {"kind": str(kind)} | object(kind=str(kind)) | str(kind):
            return kind
    return None


def select_by_kind(kinds: Collection[str]) -> GetPydanticSchema:
    """Return the annotation of a union: one of *kinds* selects its class, and any other kind the `Use`."""

    def tag(value: Any) -> str:
        kind = kind_of(value)
        return kind if kind is not None and kind in kinds else USE

    def build_schema(union: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        members = {tag_of(member): handler.generate_schema(member) for member in get_args(union)}
        return core_schema.tagged_union_schema(members, tag)

    return GetPydanticSchema(build_schema)


def tag_of(model: Any) -> str:
    """Return the tag by which a union selects *model*: its ``kind``, `USE`, or its name."""
    model = (*get_args(model), model)[0]  # that of an ``Annotated``
    if "kind" not in model.model_fields:
        return str(model.__name__)
    return str((*get_args(model.model_fields["kind"].annotation), USE)[0])


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return *params* with a dotted key for each value; an empty section and a list are values."""
    flat: dict[str, Any] = {}
    for key, value in params.items():
        is_section = isinstance(value, Mapping) and bool(value)
        flat |= flatten(value, f"{prefix}{key}.") if is_section else {f"{prefix}{key}": value}
    return flat
