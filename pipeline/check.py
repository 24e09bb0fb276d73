"""What params name and dvc.yaml does not depend on: an edit of it would not rerun the stage."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from pipeline.params import Params
from pipeline.yaml_files import read_yaml

CODE_OF = {
    "load-data": ("load_data",),
    "build-learner": ("build_learner",),
    "fit": ("build_learner", "fit"),
}


def missing_deps(params: Params, root: Path = Path()) -> list[str]:
    """A line for each file below *root* that a stage uses by name and does not have among its ``deps``."""
    stages = read_yaml(root / "dvc.yaml").get("stages", {})
    lines = []
    for stage, sections in CODE_OF.items():
        deps = [root / str(dep) for dep in stages.get(stage, {}).get("deps", [])]
        used = {path for section in sections for path in modules(getattr(params, section), root)}
        used |= set(data_files(getattr(params, stage.replace("-", "_"))))
        lines += [
            f"dvc.yaml: an edit of {path} would not rerun {stage}; add to its deps:\n      - {path}"
            for path in sorted(used)
            if not any(path.is_relative_to(dep) for dep in deps)
        ]
    return lines


def modules(config: BaseModel, root: Path) -> Iterator[Path]:
    """The modules below *root* that *config*, or anything in it, names."""
    for name, value in _texts(config):
        if name == "kind" and ":" in value:
            yield from _module(value.partition(":")[0], root)


def data_files(config: BaseModel) -> Iterator[Path]:
    """The files and directories of the project that *config*, or anything in it, names."""
    for name, value in _texts(config):
        if name == "path" and not Path(value).is_absolute():
            yield Path(value)


def _texts(config: BaseModel) -> Iterator[tuple[str, str]]:
    """Every text in *config*, or in anything in it, by its key."""
    for name, value in [*config, *(config.model_extra or {}).items()]:
        for each in value if isinstance(value, tuple | list) else [value]:
            if isinstance(each, BaseModel):
                yield from _texts(each)
            elif isinstance(each, str):
                yield name, each


def _module(name: str, root: Path) -> Iterator[Path]:
    """The file of module *name*, where it lies below *root*; nothing is imported for the answer."""
    base = root.joinpath(*name.split("."))
    for path in (base.with_suffix(".py"), base):
        if path.exists():
            yield path
            return
