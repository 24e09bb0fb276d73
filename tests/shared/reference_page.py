"""Write the page of all params from the docstrings of their fields."""

import json
import re
from collections.abc import Iterator
from inspect import isclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from stages.contracts.config import Use
from stages.create_artifact_dir import CreateArtifactDirConfig
from stages.load_data import LoadDataConfig
from stages.params.build_learner_params import BuildLearnerConfig
from stages.params.fit_params import FitConfig
from stages.params.save_model_params import SaveModelConfig

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "stages/params/reference.md"
TITLE = """\
# Reference of `params.yaml`

Every param of every section with its default. This page is written from the docstrings of the fields by
`python tests/shared/reference_page.py`, and a test compares them.
"""


def page() -> str:
    """Return the page."""
    sections = {
        "create_artifact_dir": CreateArtifactDirConfig,
        "load_data": LoadDataConfig,
        "build_learner": BuildLearnerConfig,
        "fit": FitConfig,
        "save_model": SaveModelConfig,
    }
    parts = [TITLE]
    for name, config in sections.items():
        parts += [f"## {name}\n", *entries(config)]
    return "\n".join(parts)


def entries(config: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the entry of each field of *config* and of the sections in it, but for those with kinds."""
    for name, field in config.model_fields.items():
        yield f"**`{prefix}{name}`**{default_of(field)}\n"
        if field.description:
            yield markdown(field.description) + "\n"
        if "\n* ``" not in (field.description or ""):
            for section in sections_in(field.annotation):
                yield from entries(section, f"{prefix}{name}.")


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the config classes in *annotation*, but for those of a kind with arguments of its own."""
    if isclass(annotation) and issubclass(annotation, BaseModel) and annotation is not Use:
        yield annotation
    for each in get_args(annotation):
        yield from sections_in(each)


def default_of(field: FieldInfo) -> str:
    """Return the default of *field* as params.yaml has it; nothing for a section with defaults of its own."""
    if field.is_required():
        return ", required"
    value = field.default
    many = value if isinstance(value, tuple) else (value,)
    plain = [kind_of(each) if isinstance(each, BaseModel) else each for each in many]
    if None in plain and value is not None:
        return ""
    text = json.dumps(plain if isinstance(value, tuple) else plain[0])
    return ", default `" + re.sub(r'"(\w+)"', r"\1", text) + "`"


def kind_of(section: BaseModel) -> str | None:
    """Return the kind of *section*, if it has one."""
    kind = getattr(section, "kind", None)
    return None if kind is None else str(kind)


def markdown(text: str) -> str:
    """Return the docstring *text* with code and lists as Markdown has them."""
    return text.replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page())
