"""What a section of params.yaml is made of: strict models, and names of parts that users may supply."""

from math import isfinite
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

from stages.contracts.fields import Text

MAX_DEPTH = 100
"""Of nested lists and mappings in an argument; one that contains itself has no end."""


class Config(BaseModel):
    """A section of params.yaml: frozen, and strict about names it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Use(BaseModel):
    """A part by name, and what to build it with: ``accuracy`` or ``{kind: "my_lab.nets:Wide", width: 64}``.

    Every key but ``kind`` is an argument of the part; one that is null is not passed on.
    """

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    kind: Text
    """A built-in name, a name registered as an entry point, or ``package.module:Name``."""

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_name(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_arguments(self) -> Self:
        """Refuse what JSON does not have: it would be read as another value from ``learner.json``."""
        for name, value in (self.model_extra or {}).items():
            if not _is_plain(value):
                raise ValueError(
                    f"the argument {name!r} must be null, a boolean, a finite number, a string, or a list or "
                    f"a mapping of these; found {value!r:.60}"
                )
        return self


def _is_plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, list | tuple):
        return depth < MAX_DEPTH and all(_is_plain(each, depth + 1) for each in value)
    if isinstance(value, dict):
        return (
            depth < MAX_DEPTH
            and all(isinstance(key, str) for key in value)
            and all(_is_plain(each, depth + 1) for each in value.values())
        )
    return value is None or isinstance(value, str | int)


def arguments_of(config: BaseModel) -> dict[str, Any]:
    """What a part is built with: the keys beside ``kind``, but for those that are null."""
    return {key: value for key, value in config if key != "kind" and value is not None}


def kind_of(value: Any) -> str | None:
    """Return the ``kind`` that raw data or a built config names; None if it names none."""
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", value)
    return kind if isinstance(kind, str) else None
