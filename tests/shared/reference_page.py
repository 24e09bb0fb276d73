"""Write the page of all params from the docstrings of their fields, and the kinds from their classes."""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from stages.contracts.config import Use
from stages.contracts.plugins import find
from stages.create_artifact_dir import CreateArtifactDirConfig
from stages.data.config import AUGMENTATIONS, BATCHERS
from stages.data.config import BUILT_IN as SOURCES
from stages.load_data import LoadDataConfig
from stages.loggers.config import BUILT_IN as LOGGERS
from stages.loggers.config import PATH_PARAMETERS, PROCESS_OPTIONS, TRACKERS
from stages.loggers.tracking import TrackerProcess
from stages.metrics.registry import BUILT_IN as METRICS
from stages.metrics.registry import TELEMETRY
from stages.models.config import BUILT_IN as MODELS
from stages.optim.config import BUILT_IN as OPTIMIZERS
from stages.optim.schedules import BUILT_IN as SCHEDULES
from stages.params.build_learner_params import BuildLearnerConfig
from stages.params.fit_params import HOOKS, FitConfig
from stages.params.save_model_params import SaveModelConfig

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "stages/params/reference.md"
TITLE = """\
# Reference of `params.yaml`

Every param of every section with its default. Below a param with kinds are the arguments of each kind, and
their defaults. This page is written from the config classes by `python tests/shared/reference_page.py`, and a
test compares them.
"""
REGISTRIES: Mapping[str, Mapping[str, str]] = {
    "source": SOURCES,
    "model": MODELS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "batcher": BATCHERS,
    "augment": AUGMENTATIONS,
    "averaging": {"ema": "", "swa": ""},
    "hooks": HOOKS,
    "metrics": dict(sorted(METRICS.items())),
    "telemetry": TELEMETRY,
    "loggers": LOGGERS,
}
"""Param to kind to the import path of its part, which is not used for a kind with a config class."""
FROM_DATA = {"mean", "std"}
"""Arguments of a batcher whose defaults are those of the data."""


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
        parts += [f"## {name}\n", *entries(config, f"{name}.")]
    return "\n".join(parts)


def entries(config: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield the entries of *config*, whose names begin with *prefix*, their kinds, and the sections in it."""
    texts = docstrings_of(config)
    for name, field in config.model_fields.items():
        yield f"{'##' + '#' * prefix.count('.')} `{prefix}{name}`\n"
        if default := default_of(field):
            yield f"{default}\n"
        if name in texts:
            yield texts[name].replace("``", "`") + "\n"
        if name in REGISTRIES:
            yield "\n".join(kinds_of(name, field)) + "\n"
        else:
            for section in sections_in(field.annotation):
                yield from entries(section, f"{prefix}{name}.")


def docstrings_of(config: type[BaseModel]) -> dict[str, str]:
    """Return the docstring below each field of *config*; Pydantic would read them in every process."""
    texts: dict[str, str] = {}
    for owner in reversed(config.__mro__):
        if owner is BaseModel or not issubclass(owner, BaseModel):
            continue
        statements = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0].body
        for statement, following in pairwise([*statements, ast.Pass()]):
            if not isinstance(statement, ast.AnnAssign):
                continue
            texts.pop(statement.target.id, None)
            if isinstance(following, ast.Expr):
                texts[statement.target.id] = inspect.cleandoc(ast.literal_eval(following.value))
    return texts


def kinds_of(name: str, field: FieldInfo) -> Iterator[str]:
    """Yield a line for each kind of the param *name*, with its arguments."""
    sections = {kind: section for section in sections_in(field.annotation) for kind in literal_kinds(section)}
    for kind, path in REGISTRIES[name].items():
        if kind in sections:
            own = sections[kind].__annotations__
            defaults = {key: value for key, value in section_defaults(sections[kind]).items() if key in own}
        elif path.startswith("torch."):
            yield f"* `{kind}`: the arguments of `{path.replace(':', '.')}`"
            continue
        else:
            defaults = signature_defaults(kind, find(name, path, {}))
        arguments = ", ".join(describe_argument(*pair) for pair in defaults.items())
        yield f"* `{kind}`: {arguments or 'no arguments'}"


def describe_argument(name: str, default: Any) -> str:
    """Return the argument *name* with its *default*, which is ... if it is required."""
    return f"`{name}`" if default is ... else f"`{name}: {plain(default)}`"


def literal_kinds(section: type[BaseModel]) -> tuple[str, ...]:
    """Return the values of ``kind`` that *section* accepts; none if it accepts any text."""
    field = section.model_fields.get("kind")
    return () if field is None else get_args(field.annotation)


def section_defaults(section: type[BaseModel]) -> dict[str, Any]:
    """Return argument to default of *section*; ... if it is required."""
    fields = {key: field for key, field in section.model_fields.items() if key != "kind"}
    return {key: ... if field.is_required() else field.default for key, field in fields.items()}


def signature_defaults(kind: str, maker: Any) -> dict[str, Any]:
    """Return argument to default of *maker*, without those that params.yaml cannot have."""
    parameters = dict(inspect.signature(maker).parameters)
    if kind in TRACKERS:
        options = inspect.signature(TrackerProcess).parameters
        parameters |= {name: options[name] for name in PROCESS_OPTIONS}
    return {
        name: ... if parameter.default is parameter.empty or name in FROM_DATA else parameter.default
        for name, parameter in parameters.items()
        if name not in PATH_PARAMETERS and "Callable" not in str(parameter.annotation)
    }


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the config classes in *annotation*, but for those of a kind with arguments of its own."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel) and annotation is not Use:
        yield annotation
    for each in get_args(annotation):
        yield from sections_in(each)


def default_of(field: FieldInfo) -> str:
    """Return the default of *field* as params.yaml has it; nothing for a section with defaults of its own."""
    if field.is_required():
        return "Required."
    value = field.default
    if isinstance(value, BaseModel) and kind_of(value) is None:
        return ""
    text = plain(value)
    return "" if "null" in text and value is not None else f"Default: `{text}`."


def plain(value: Any) -> str:
    """Return *value* as params.yaml has it, a section as its kind."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(plain, value))}]"
    if isinstance(value, BaseModel):
        return str(kind_of(value) or "null")
    if isinstance(value, float) and 0 < value < 0.01:
        return re.sub(r"\.?0*e-0?", "e-", f"{value:e}")
    return str(value) if isinstance(value, str) else json.dumps(value)


def kind_of(section: BaseModel) -> str | None:
    """Return the kind of *section*, if it has one."""
    kind = getattr(section, "kind", None)
    return None if kind is None else str(kind)


if __name__ == "__main__":
    PAGE.write_text(page())
