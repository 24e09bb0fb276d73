"""The files and the code that params.yaml and dvc.yaml name, and the messages about missing files."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import BaseModel

from pipeline.project.git import find_top, try_git
from pipeline.project.params import Params
from pipeline.project.snapshot import list_paths, resolve_stages
from pipeline.project.yaml_files import DEFINITION, read_definition
from stages.contracts.config import Use
from stages.contracts.fields import DATA_PATH
from stages.optim.schedules import FUNCTIONS
from stages.records.safetensors_format import is_index, read_index

CODE_KEYS = ("kind", *FUNCTIONS)
"""The keys of params.yaml whose value may be an import path."""
KEYS_OF_PATHS = ("foreach", "matrix", "vars", "wdir")
"""The keys of a stage in dvc.yaml that make more paths than it lists, or others."""
POINTER_SUFFIX = ".dvc"
"""Suffix of a file with which DVC tracks data."""


def find_missing_data(params: Params) -> list[str]:
    """Return a line for each data path in *params* that does not exist and that no stage writes."""
    outputs = list_outputs(read_definition())
    return [
        f"{key}: the file or folder {str(path)!r} does not exist. {find_remedy(path)}"
        for key, named in _paths(params)
        for path in (named, *_shards(named))
        if not path.exists() and not overlaps(path, outputs)
    ]


def find_missing_files(
    definition: Mapping[str, Any], params: Params | None = None
) -> dict[tuple[str, Path], str]:
    """Return a line for each stage and path in the deps of *definition* that `dvc repro` would miss.

    *definition* is that of dvc.yaml. Data that *params* name are left out, because `find_missing_data`
    reports them. Empty if only DVC can list the paths of its stages.
    """
    reported = [path for _, path in _paths(params) if not path.exists()] if params else []
    return {
        (name, path): f"dvc.yaml: {path}, in the deps of {name}, does not exist, and no stage writes it. "
        f"{find_remedy(path)}"
        for name, path in _list_inputs(definition)
        if not (path.exists() or overlaps(path, reported))
    }


def find_untracked_files(definition: Mapping[str, Any]) -> list[str]:
    """Return a line for each path in the deps of *definition* that a copy of the project lacks.

    Git does not track the file, or that of DVC which tracks it. Empty if only DVC can list the paths of the
    stages.
    """
    top = find_top(Path())
    if top is None:
        return []
    inputs = {
        _find_pointer(path) or path: name
        for name, path in _list_inputs(definition)
        if Path(os.path.abspath(path)).is_relative_to(top)  # noqa: PTH100  no link followed
    }
    options = ("--others", "--exclude-standard", "--directory", "-z")
    patterns = [f":(literal){path}" for path in inputs]
    listed = try_git(Path(), "ls-files", *options, "--", *patterns).stdout if patterns else ""
    untracked = {Path(path) for path in filter(None, listed.split("\0"))}
    return [
        f"dvc.yaml: git does not track {path}, from which {name} has a dependency, and sweeps and scheduled "
        f"experiments run in a copy, which lacks it. Run `git add {quote(str(path))}`"
        + ("" if path.suffix == POINTER_SUFFIX else f", or `dvc add {quote(str(path))}` for data")
        for path, name in inputs.items()
        if not untracked.isdisjoint([path, *path.parents])
    ]


def _list_inputs(definition: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Yield the stage and the path of each of the deps in *definition* that no stage writes.

    DVC does not read the deps of frozen stages. A folder with a dvc.yaml of its own may have stages that
    write. Empty if only DVC can list all paths, as in a repository with several dvc.yaml.
    """
    stages, outputs = resolve_stages(definition), list_outputs(definition)
    pipelines = try_git(Path(), "ls-files", "--", f":(top,glob)**/{DEFINITION}").stdout.splitlines()
    if len(pipelines) > 1 or any(key in stage for stage in stages.values() for key in KEYS_OF_PATHS):
        return
    for name, stage in stages.items():
        paths = () if stage.get("frozen") else list_paths(stage, "deps")
        for path in map(Path, (path for path in paths if "://" not in path)):
            has_stages = any((folder / DEFINITION).exists() for folder in path.parents if folder.name)
            if not has_stages and not overlaps(path, outputs):
                yield name, path


def list_outputs(definition: Mapping[str, Any]) -> list[Path]:
    """Return the outputs of all stages of *definition*, that of dvc.yaml."""
    return [Path(path) for stage in resolve_stages(definition).values() for path in list_paths(stage, "outs")]


def overlaps(path: Path, outputs: Iterable[Path]) -> bool:
    """Return whether *path* is one of *outputs*, is in one, or has one in it."""
    return any(path.is_relative_to(output) or output.is_relative_to(path) for output in outputs)


def find_outside_data(params: Params, definition: Mapping[str, Any], root: Path = Path()) -> list[str]:
    """Return a line for each path to data that a copy of the project *root* in another folder lacks.

    The paths are those in *params* and the deps in *definition*, that of dvc.yaml.
    """
    top = find_top(root) or root.absolute()
    entries = resolve_stages(definition).items()
    deps = [
        (f"dvc.yaml: {name}", Path(path)) for name, stage in entries for path in list_paths(stage, "deps")
    ]
    keys: dict[Path, str] = {}
    for key, path in [*_paths(params), *deps]:
        keys.setdefault(path, key)
    places = {path: Path(os.path.abspath(root / path)) for path in keys if not path.is_absolute()}  # noqa: PTH100  no link followed
    return [
        f"{keys[path]}: {path} is outside of the repository, and sweeps and scheduled experiments run in a "
        f"copy of it. Write {place}, or put it into the project"
        for path, place in places.items()
        if not place.is_relative_to(top)
    ]


def find_data_files(config: BaseModel) -> Iterator[Path]:
    """Yield the files and directories that *config* names at any depth, and their shards.

    Raises `RecordError` if an index of shards is invalid.
    """
    for _, path in _paths(config):
        yield path
        yield from _shards(path)


def _shards(path: Path) -> list[Path]:
    """Return the files of the weights that *path* is an index of; none if it is another file."""
    return list(read_index(path)) if is_index(path) and path.is_file() else []


def list_values(*configs: BaseModel) -> set[str]:
    """Return every string in *configs*; the import paths among them name the code that a command may run."""
    return {value for config in configs for _, value, _ in list_strings(config)}


def list_strings(config: BaseModel, prefix: str = "") -> Iterator[tuple[str, str, bool]]:
    """Yield every string in *config* with its key, which begins with *prefix*, and if it is a path to data.

    Such a path has the key ``path``, or is a field of the type `DataPath`.
    """
    for name, value in [*config, *(config.model_extra or {}).items()]:
        key = f"{prefix}{name}"
        field = type(config).model_fields.get(name)
        is_path = name == "path" or (field is not None and DATA_PATH in field.metadata)
        for item in value if isinstance(value, tuple | list) else [value]:
            if isinstance(item, BaseModel):
                yield from list_strings(item, f"{key}.")
            elif isinstance(item, dict) and "kind" in item:  # a part of a part, such as one of schedulers
                yield from list_strings(Use.model_validate(item), f"{key}.")
            elif isinstance(item, str):
                yield key, item, is_path


def _paths(config: BaseModel) -> Iterator[tuple[str, Path]]:
    """Yield every path to data in *config* with its key, except for URLs."""
    for key, value, is_path in list_strings(config):
        if is_path and "://" not in value:
            yield key, Path(value)


def _find_pointer(path: Path) -> Path | None:
    """Return the file of DVC that tracks *path*, or a folder with it; None without one."""
    candidates = [place for place in (path, *path.parents) if place.name not in ("", "..")]
    pointers = [place.with_name(f"{place.name}{POINTER_SUFFIX}") for place in candidates]
    return next((pointer for pointer in pointers if pointer.exists()), None)


def find_remedy(path: Path) -> str:
    """Return what to do if *path* does not exist and no stage writes it."""
    pointer = _find_pointer(path)
    return f"Run `dvc pull {quote(str(pointer))}`" if pointer else "Correct the path"
