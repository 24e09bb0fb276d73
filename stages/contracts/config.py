"""What a section of params.yaml is made of: strict models, and names of parts that users may supply."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Config(BaseModel):
    """A section of params.yaml: frozen, and strict about names it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Use(BaseModel):
    """A part by name, and what to build it with: ``accuracy`` or ``{kind: "my_lab.nets:Wide", width: 64}``.

    Every key but ``kind`` is an argument of the part; one that is null is not passed on.
    """

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    kind: str
    """A built-in name, a name registered as an entry point, or ``package.module:Name``."""

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_name(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


def arguments_of(config: BaseModel) -> dict[str, Any]:
    """What a part is built with: the keys beside ``kind``, but for those that are null."""
    return {key: value for key, value in config if key != "kind" and value is not None}


def kind_of(value: Any) -> str | None:
    """The ``kind`` that raw data or a built config names."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return value.get("kind")
    return getattr(value, "kind", None)
