"""Checks of params against the rest of the project: the sections and ``deps`` in dvc.yaml, and the data."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline.project.params import Params, build_params_error
from pipeline.project.paths import parse_paths, read_paths
from pipeline.project.snapshot import interpolate, read_variables
from pipeline.project.versions import VERSIONS
from pipeline.project.yaml_files import read_definition, read_yaml
from stages import learner
from stages.contracts.config import Use
from stages.contracts.errors import ParamsError
from stages.contracts.fields import DATA_PATH
from stages.contracts.history import Split
from stages.data.config import Digits, ImageFolder, Npy, Table, TextFiles
from stages.optim.schedules import BUILT_IN, FUNCTIONS, ScheduleUse
from stages.records.safetensors_format import is_index, read_index
from stages.runs.retention import BestConfig

PARAMS = Path("params.yaml")
SECTIONS_BY_STAGE = {
    "load-data": ("load_data",),
    "build-learner": ("build_learner",),
    "fit": ("build_learner", "fit"),
}
"""The sections of params.yaml that name the code that a stage runs."""
ONE_CYCLE = ("one_cycle", BUILT_IN["one_cycle"])
CODE_KEYS = ("kind", *FUNCTIONS)
"""The keys of params.yaml whose value may be an import path."""


def check_params(params: Params) -> None:
    """Raise `ParamsError` with a line for each mistake that would fail a run after its first stage."""
    if mistakes := find_late_mistakes(params, read_yaml(PARAMS), read_definition()):
        raise build_params_error(PARAMS, mistakes)


def find_late_mistakes(
    params: Params, content: Mapping[str, Any], definition: Mapping[str, Any]
) -> list[str]:
    """Return a line for each mistake that the first stages would not detect.

    *content* is that of params.yaml, from which *params* were read, and *definition* that of dvc.yaml.
    """
    missing = [each for each in _list_tracked_keys(definition) if not _has(content, each[1])]
    lines = [
        f"{key}: the key is missing, and the stage {stage} in dvc.yaml tracks it. Add "
        + ("the key" if "." in key else f"'{key}: {{}}' for its defaults")
        for stage, key in missing
    ]
    model = parse_paths(definition, "dvc.yaml").get("model")
    try:
        if model is not None:
            params.save_model.check_suffix(model)
    except ParamsError as error:
        lines.append(str(error))
    return [
        *lines,
        *_find_missing_test_entries(params, definition),
        *_find_rules_without_validation(params),
        *_find_dropped_best(params),
        *_find_short_schedules(params),
    ]


def _find_missing_test_entries(params: Params, definition: Mapping[str, Any]) -> list[str]:
    """Return a line if params set a test split and dvc.yaml lacks an entry with which the model is tested."""
    stage = (definition.get("stages") or {}).get("save-model")
    paths = parse_paths(definition, "dvc.yaml")
    if not params.load_data.test_fraction or stage is None:
        return []
    missing = [] if "test" in paths else ["'test: artifacts/test/split' to vars.paths"]
    values = read_variables(definition)
    for kind, names in {"deps": ("learner", "data"), "outs": ("test",)}.items():
        entries = {_plain(each) for each in interpolate(stage.get(kind) or [], values)}
        lacking = [f"'${{paths.{each}}}'" for each in names if str(paths.get(each)) not in entries]
        if lacking:
            missing.append(f"{' and '.join(lacking)} to the {kind} of save-model")
    line = "load_data.test_fraction: dvc.yaml lacks entries with which save-model tests the model. Add "
    return [f"{line}{', '.join(missing)}, and '${{paths.test}}/metrics.json' to metrics"] if missing else []


def check_stages(definition: Mapping[str, Any]) -> None:
    """Raise `ParamsError` if *definition*, that of dvc.yaml, lacks one of the five stages or replaces it."""
    commands = {name: each.get("cmd") for name, each in (definition.get("stages") or {}).items()}
    lacking = [name for name in VERSIONS if name not in commands]
    replaced = [name for name in VERSIONS if name in commands and is_custom(name, definition)]
    found = [
        *([f"no stage {', '.join(lacking)}"] if lacking else []),
        *(f"a program of its own in the stage {name}, {commands[name]!r}" for name in replaced),
    ]
    if found:
        raise ParamsError(
            f"dvc.yaml has {' and '.join(found)}, and this command runs the five stages of learner-pipeline "
            "only. Run `dvc repro` or `dvc exp run`"
        )


def is_custom(name: str, definition: Mapping[str, Any]) -> bool:
    """Return whether the command of the stage *name* of dvc.yaml is not that of ours."""
    return f" stage {name}" not in str(definition["stages"][name].get("cmd"))


def _find_rules_without_validation(params: Params) -> Iterator[str]:
    """Yield a line for each rule that reads a metric of the valid split if params leave that split out."""
    if _may_be_validated(params):
        return
    kept = [each for each in enumerate(params.fit.keep.best) if each[1] != BestConfig()]
    rules: dict[str, Any] = {f"fit.keep.best.{number}": each for number, each in kept}
    if params.fit.early_stopping:
        rules["fit.early_stopping"] = params.fit.early_stopping
    for key, rule in rules.items():
        if rule.split is Split.VALID:
            yield (
                f"{key}: uses the valid {rule.metric!r}, but load_data.valid_fraction is 0 and the source "
                "has no valid split. Set it above 0, or use 'split: train'"
            )


def _may_be_validated(params: Params) -> bool:
    """Return whether the data may have a valid split."""
    source = params.load_data.source
    has_own = getattr(source, "valid_path", None) or getattr(source, "split", None)
    is_known = isinstance(source, Digits | Npy | Table | TextFiles)
    return bool(params.load_data.valid_fraction or has_own) or not is_known


def _find_dropped_best(params: Params) -> Iterator[str]:
    """Yield a line if ``fit.keep`` removes the checkpoint of the epoch that save-model asks for."""
    rule, keep = params.save_model.best_rule, params.fit.keep
    is_kept = rule in keep.best or keep.last >= params.fit.num_epochs
    is_last = params.save_model.best is None and not _may_be_validated(params)
    if params.save_model.epoch == "best" and not (is_kept or is_last):
        metric = f"{{metric: {rule.metric}, split: {rule.split}, direction: {rule.direction}}}"
        yield (
            f"save_model.epoch: the epoch with the {rule.direction} {rule.split} {rule.metric!r} would be "
            f"removed by fit.keep, which keeps the last {keep.last} and other best epochs. Add {metric} to "
            "fit.keep.best, or set save_model.best to one of its entries"
        )


def _find_short_schedules(params: Params) -> Iterator[str]:
    """Yield a line for a schedule that ends before the run, whose epochs have at least one batch."""
    schedule = params.build_learner.schedule
    if not isinstance(schedule, ScheduleUse) or schedule.kind not in ONE_CYCLE:
        return
    given = schedule.arguments
    try:
        length = int(given.get("total_steps") or given["epochs"] * given["steps_per_epoch"])
    except (KeyError, TypeError, ValueError):
        return  # an error of its class
    epochs = params.fit.num_epochs
    if length < epochs - (schedule.per != "epoch"):
        yield (
            f"build_learner.schedule.total_steps: the schedule ends after {length} steps, one per "
            f"{schedule.per}, but fit.num_epochs is {epochs}. Set it to the steps of the whole run"
        )


def find_missing_data(params: Params, root: Path = Path()) -> list[str]:
    """Return a line for each data path in *params* that does not exist and that no stage writes."""
    definition = read_definition(root / "dvc.yaml")
    entries = [each.get("outs") or [] for each in (definition.get("stages") or {}).values()]
    outputs = [
        root / _plain(each) for outs in entries for each in interpolate(outs, read_variables(definition))
    ]
    return [
        f"{key}: the file or folder {str(path)!r} does not exist. {_advice(root / path)}"
        for key, named in _paths(params, "")
        for path in (named, *_shards(named, root))
        if not (root / path).exists() and not any(_overlap(root / path, each) for each in outputs)
    ]


def find_missing_deps(params: Params, root: Path = Path()) -> list[str]:
    """Return a line for each file below *root* that a stage uses and that its ``deps`` lack."""
    definition = read_definition(root / "dvc.yaml")
    stages, values, lines = definition.get("stages", {}), read_variables(definition), []
    tested = {"save-model": SECTIONS_BY_STAGE["fit"]} if "test" in read_paths(root / "dvc.yaml") else {}
    for stage, sections in (SECTIONS_BY_STAGE | tested).items():
        if stage not in stages:
            continue  # the project has a stage of its own instead
        deps = [root / str(dep) for dep in interpolate(stages[stage].get("deps", []), values)]
        used = {path for section in sections for path in find_modules(getattr(params, section), root)}
        used |= set(find_data_files(getattr(params, stage.replace("-", "_"))))
        used |= set(_find_indexed_files(params, root) if stage == "fit" else ())
        lines += [
            f"dvc.yaml: an edit of {path} would not rerun {stage}; add to its deps:\n      - {path}"
            for path in sorted(used)
            if not any(path.is_relative_to(dep) for dep in deps)
        ]
    return lines


def find_modules(config: BaseModel, root: Path) -> Iterator[Path]:
    """Yield the modules below *root* that *config* names at any depth."""
    for name, value, _ in list_strings(config):
        if name.rpartition(".")[2] in CODE_KEYS and ":" in value:
            yield from _module(value.partition(":")[0], root)


def find_data_files(config: BaseModel) -> Iterator[Path]:
    """Yield the files and directories of the project that *config* names at any depth, and their shards.

    Raises `RecordError` if an index of shards is invalid.
    """
    for _, path in _paths(config, ""):
        if not path.is_absolute():
            yield path
            yield from _shards(path, Path())


def _shards(path: Path, root: Path) -> list[Path]:
    """Return the files of the weights that *path* is an index of; none if it is another file."""
    index = root / path
    if not (is_index(path) and index.is_file()):
        return []
    return [path.parent / each.relative_to(index.parent) for each in read_index(index)]


def _find_indexed_files(params: Params, root: Path) -> Iterator[Path]:
    """Yield the folder of the project whose files fit reads, if load-data writes or has written an index."""
    source, materialize = params.load_data.source, params.load_data.materialize
    if not isinstance(source, ImageFolder) or materialize == "tensors" or Path(source.path).is_absolute():
        return
    dataset = root / parse_paths(read_definition(root / "dvc.yaml"), "dvc.yaml").get("dataset", "")
    if materialize == "index" or (dataset.is_file() and "index" in read_yaml(dataset)):
        yield Path(source.path)


def read_spec(directory: Path, params: Params) -> "learner.LearnerSpec":
    """Return the ``learner.json`` in *directory*, which may come from a remote.

    Raises `CheckpointError` if it names code that is neither built in nor named in build_learner of *params*.
    """
    spec = learner.LearnerSpec.read(directory)
    spec.check_code({value for _, value, _ in list_strings(params.build_learner)})
    return spec


def list_strings(config: BaseModel, prefix: str = "") -> Iterator[tuple[str, str, bool]]:
    """Yield every string in *config* with its key, which begins with *prefix*, and if it is a path to data.

    Such a path has the key ``path``, or is a field of the type `DataPath`.
    """
    for name, value in [*config, *(config.model_extra or {}).items()]:
        key = f"{prefix}{name}"
        field = type(config).model_fields.get(name)
        is_path = name == "path" or (field is not None and DATA_PATH in field.metadata)
        for each in value if isinstance(value, tuple | list) else [value]:
            if isinstance(each, BaseModel):
                yield from list_strings(each, f"{key}.")
            elif isinstance(each, dict) and "kind" in each:  # a part of a part, such as one of schedulers
                yield from list_strings(Use.model_validate(each), f"{key}.")
            elif isinstance(each, str):
                yield key, each, is_path


def _paths(config: BaseModel, prefix: str) -> Iterator[tuple[str, Path]]:
    """Yield every path to data in *config* with its key, except for URLs."""
    for key, value, is_path in list_strings(config, prefix):
        if is_path and "://" not in value:
            yield key, Path(value)


def _list_tracked_keys(definition: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each stage of dvc.yaml with each key of params.yaml that it tracks."""
    for stage, entry in (definition.get("stages") or {}).items():
        for each in entry.get("params") or []:
            keys = each.get(str(PARAMS)) or [] if isinstance(each, Mapping) else [each]
            yield from ((stage, str(key)) for key in keys if "${" not in str(key))


def _has(content: Any, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(content, Mapping) or name not in content:
            return False
        content = content[name]
    return True


def _overlap(path: Path, output: Path) -> bool:
    return path.is_relative_to(output) or output.is_relative_to(path)


def _plain(entry: Any) -> str:
    """Return the path of an output, which may have settings."""
    return str(next(iter(entry)) if isinstance(entry, Mapping) else entry)


def _advice(path: Path) -> str:
    for each in (path, *path.parents):
        if each.name and (pointer := each.with_name(f"{each.name}.dvc")).exists():
            return f"Run `dvc pull {pointer}`"
    return "Correct the path"


def _module(name: str, root: Path) -> Iterator[Path]:
    """Yield the file or package of the module *name* if it is below *root*, without importing it."""
    base = root.joinpath(*name.split("."))
    for path in (base.with_suffix(".py"), base):
        if path.exists():
            yield path
            return
