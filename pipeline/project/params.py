"""params.yaml as one model: a section for each stage, and the checks across sections.

They compare the metrics with the model and with the rules that follow them, and the spans of a schedule with
the length of the run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError, model_validator
from pydantic_core import to_jsonable_python

from pipeline.project.snapshot import ABSENT, look_up
from pipeline.project.yaml_files import read_yaml
from stages.contracts import plugins
from stages.contracts.burn import choose_version
from stages.contracts.config import Config, Use
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.fields import describe_lbfgs_conflict, describe_portable_optimizer_conflict
from stages.contracts.history import Split, check_file_names
from stages.contracts.validation import describe_errors, format_value
from stages.create_artifact_dir import CreateArtifactDirConfig
from stages.data.config import Digits, Npy, Table, TextFiles
from stages.load_data import LoadDataConfig
from stages.models.config import BUILT_IN as MODELS
from stages.optim import schedules
from stages.optim.run_length import RunLength, unit_of
from stages.optim.schedules import Rule, ScheduleUse, parse_monitor
from stages.params.build_learner_params import BuildLearnerConfig
from stages.params.fit_params import FitConfig
from stages.params.save_model_params import SaveModelConfig
from stages.runs.retention import KeepBest

PARAMS = Path("params.yaml")
METRIC_NAMES = {"loss": "Loss", "accuracy": "Accuracy"}
"""The names of metrics that need no import, by their kinds."""
MEASURED = {
    "cnn": {"loss", "accuracy"},
    "mlp": {"loss", "accuracy"},
    "mlp_regressor": {"loss"},
    "unet": {"loss", "accuracy"},
}
"""Kinds of these metrics that the outputs of the built-in models have the values for."""
ONE_CYCLE = ("one_cycle", schedules.BUILT_IN["one_cycle"])
"""The kinds of a schedule whose length its arguments set."""
CYCLES = (*ONE_CYCLE, "cyclic", schedules.BUILT_IN["cyclic"])
"""The kinds of a schedule that changes the momentum too, by default."""
WITHOUT_MOMENTUM = ("adagrad", "lbfgs")
"""The kinds of an optimizer that has no momentum to change."""


class Params(Config):
    """The content of params.yaml. A missing key has its default."""

    create_artifact_dir: CreateArtifactDirConfig = CreateArtifactDirConfig()
    load_data: LoadDataConfig = LoadDataConfig()
    build_learner: BuildLearnerConfig = BuildLearnerConfig()
    fit: FitConfig = FitConfig()
    save_model: SaveModelConfig = SaveModelConfig()

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.save_model.epoch == "best" and "loss" not in {use.kind for use in self.fit.metrics}:
            raise ValueError(
                "save_model.epoch is 'best', but fit.metrics has no 'loss'. Add loss to fit.metrics"
            )
        checkpoint = self.build_learner.checkpoint
        if checkpoint and checkpoint.epoch and checkpoint.epoch >= self.fit.num_epochs:
            raise ValueError(
                f"build_learner.checkpoint.epoch is {checkpoint.epoch}, but fit.num_epochs, which includes "
                f"the epochs before the checkpoint, is {self.fit.num_epochs}. Set it to a larger number"
            )
        conflict = describe_portable_optimizer_conflict(self.build_learner.optimizer.kind)
        if self.fit.portable and conflict:
            raise ValueError(conflict)
        device = self.fit.device  # that of "all" is known on the machine of the run only
        conflict = describe_lbfgs_conflict(
            self.fit.grads_accumulation.batches, 1 if isinstance(device, str) else len(device)
        )
        if self.build_learner.optimizer.kind == "lbfgs" and conflict:
            raise ValueError(conflict)
        return self


def read_params(path: Path = PARAMS) -> Params:
    """Return the params in *path*, with all defaults. Raises `ParamsError` with a line for each mistake."""
    return validate_params(read_yaml(path), path)


def list_params(path: Path = PARAMS) -> Iterator[tuple[str, Any, bool]]:
    """Yield all params in the order of their sections. Raises as `read_params` does.

    A param is its key with dots, its value as JSON has it, of the type that the stage receives, and whether
    params.yaml has it; otherwise the value is the default. The arguments of a part that is not built in are
    those that params.yaml has.
    """
    content = read_yaml(path)
    return _iterate(validate_params(content, path), content, "")


def _iterate(config: BaseModel, content: Any, prefix: str) -> Iterator[tuple[str, Any, bool]]:
    """Yield the params of *config*, whose keys begin with *prefix*, and are set in *content* or not."""
    for name, value in config:
        key = f"{prefix}{name}"
        found = look_up(content, name)
        if isinstance(value, BaseModel):
            is_bare = isinstance(found, str) and found is not ABSENT
            yield from _iterate(value, {"kind": found} if is_bare else found, f"{key}.")
        else:
            yield key, to_jsonable_python(value), found is not ABSENT


def validate_params(content: Any, path: Path) -> Params:
    """Return the params with *content*, which was read from *path*. Raises as `read_params` does."""
    if not content:
        names = ", ".join(Params.model_fields)
        raise ParamsError(f"{path} has no params. Write a section for each stage: {names}")
    if not isinstance(content, dict):
        raise ParamsError(f"{path} must have a section for each stage; found {format_value(content)}")
    sections = {key: {} if value is None else value for key, value in content.items()}
    try:
        return Params.model_validate(sections)
    except ValidationError as error:
        raise build_params_error(path, describe_errors(error, Params)) from error


def has_key(params: Params, key: str) -> bool:
    """Return whether *key*, with dots, is a param of *params*, or an argument of a part that they name."""
    *parents, name = key.split(".")
    value: Any = params
    for parent in parents:
        if not (isinstance(value, Config) and parent in type(value).model_fields):
            return False
        value = getattr(value, parent)
    return isinstance(value, Use) or (isinstance(value, Config) and name in type(value).model_fields)


def build_params_error(path: Path, mistakes: Iterable[str]) -> ParamsError:
    """Return the error for the *mistakes* in *path*; further lines of a mistake are indented."""
    lines = ["\n    ".join(map(str.strip, mistake.splitlines())) for mistake in mistakes]
    return ParamsError("\n  ".join([f"{path} is not valid:", *lines]))


@dataclass(frozen=True)
class Plateau:
    """A schedule that follows a metric."""

    needs: frozenset[tuple[Split, str]]


def list_conflicts(params: Params) -> list[str]:
    """Return a line for each rule and schedule in *params* that does not fit the rest of them.

    These are rules about a split that the data does not have, a best epoch whose checkpoint is removed, and
    a schedule that is shorter than the run, or changes a momentum that the optimizer does not have.
    """
    return [
        *_find_rules_without_validation(params),
        *_find_dropped_best(params),
        *_find_short_schedules(params),
        *_find_missing_momentum(params),
    ]


def _find_rules_without_validation(params: Params) -> Iterator[str]:
    """Yield a line for each rule that reads a metric of the valid split if params leave that split out."""
    if _may_be_validated(params):
        return
    for key, rule in _list_rules(params).items():
        metrics_of_valid = [metric for split, metric in rule.needs if split is Split.VALID]
        if metrics_of_valid and rule != KeepBest():  # the default keeps no epoch then
            yield (
                f"{key}: uses the valid {metrics_of_valid[0]!r}, but load_data.valid_fraction is 0 and the "
                "source has no valid split. Set it above 0, or use the metric of the train split"
            )


def _may_be_validated(params: Params) -> bool:
    """Return whether the data may have a valid split."""
    source, drawn = params.load_data.source, params.load_data.valid_fraction or params.load_data.folds
    fields = dict(source)
    has_valid_split = fields.get("valid_path") or fields.get("split") or drawn
    return bool(has_valid_split) or not isinstance(source, Digits | Npy | Table | TextFiles)


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
    arguments = schedule.arguments
    try:
        length = int(arguments.get("total_steps") or arguments["epochs"] * arguments["steps_per_epoch"])
    except (KeyError, TypeError, ValueError):
        return  # an error of its class
    epochs = params.fit.num_epochs
    if length < epochs - (schedule.per != "epoch"):
        yield (
            f"build_learner.schedule.total_steps: the schedule ends after {length} steps, one per "
            f"{schedule.per}, but fit.num_epochs is {epochs}. Set it to the steps of the whole run"
        )


def _find_missing_momentum(params: Params) -> Iterator[str]:
    """Yield a line for a schedule that changes the momentum of an optimizer that has none."""
    schedule, optimizer = params.build_learner.schedule, params.build_learner.optimizer.kind
    if not isinstance(schedule, ScheduleUse) or schedule.kind not in CYCLES:
        return
    if schedule.arguments.get("cycle_momentum", True) and optimizer in WITHOUT_MOMENTUM:
        yield (
            f"build_learner.schedule: {schedule.kind} changes the momentum, which {optimizer} does not have. "
            "Set cycle_momentum: false, or use another optimizer"
        )


def are_metrics_known(params: Params) -> bool:
    """Return whether `find_metric_mistakes`, which loads torch, would find none."""
    kinds = {metric.kind for metric in params.fit.metrics}
    names = {METRIC_NAMES.get(kind) for kind in kinds}
    monitored = {name for rule in _list_rules(params).values() for _, name in rule.needs}
    return kinds <= MEASURED.get(params.build_learner.model.kind, set()) and monitored <= names


def find_metric_mistakes(params: Params) -> Iterator[tuple[str, str]]:
    """Yield a key and a message for each check of metrics that can be built; an empty one if it passes."""
    checks: Any = import_module("stages.learner.checks")
    registered_metric = import_module("stages.learner.metering").RegisteredMetric
    build = import_module("stages.metrics.registry").build_metric
    built = [registered_metric(build(use), numeric=True) for use in params.fit.metrics]
    metrics = {Split.TRAIN: built, Split.VALID: [metric for metric in built if not metric.options.train_only]}
    model = plugins.find("model", params.build_learner.model.kind, MODELS)
    model = model if isinstance(model, type) else None  # it may be built by a function
    yield "fit.metrics", describe_mistake(check_file_names, [metric.name for metric in built])
    yield "fit.metrics", describe_mistake(checks.check_metric_inputs, model, metrics)
    for key, rule in _list_rules(params).items():
        yield key, describe_mistake(checks.check_monitored_metrics, rule, metrics)


def describe_mistake(test: Callable[..., object], *arguments: Any) -> str:
    """Return the message of the `StageError` that *test* raises for *arguments*; empty if it raises none."""
    try:
        test(*arguments)
    except StageError as error:
        return str(error)
    return ""


def _list_rules(params: Params) -> Mapping[str, Any]:
    """Return the rules that monitor metrics, by their keys."""
    rules: dict[str, Any] = {
        f"fit.keep.best.{number}": rule for number, rule in enumerate(params.fit.keep.rule().rules[1:])
    }
    if params.fit.early_stopping is not None:
        rules["fit.early_stopping"] = params.fit.early_stopping
    schedule = params.build_learner.schedule
    if isinstance(schedule, ScheduleUse) and schedule.is_plateau:
        rules["build_learner.schedule.monitor"] = Plateau(frozenset({parse_monitor(schedule.monitor)}))
    return rules


def describe_schedule(params: Params, dataset: Path) -> list[str]:
    """Return a line for each span of the schedule with the steps that it is; none without a span.

    *dataset* is the description of the data that load-data wrote. Raises `ParamsError` if a span is longer
    than the run.
    """
    schedule = params.build_learner.schedule
    if not isinstance(schedule, Rule) or not schedule.spans:
        return []
    if not dataset.exists():
        return [f"build_learner.schedule: the steps of {', '.join(schedule.spans)} are known after load-data"]
    fit = params.fit
    info: Any = import_module("stages.data.storage").read_info(dataset)  # few commands load what it needs
    batches = ceil(info.counts["train"] / fit.batch_size)
    limits = (fit.limit_batches.train, fit.overfit_batches)
    batches = min([batches, *(limit for limit in limits if limit is not None)])
    version = choose_version(fit.burn, fit.recorder.suffix)
    unit = unit_of(schedule.per, version, accumulates=fit.grads_accumulation.batches > 1)
    resolved = schedule.resolve(RunLength(fit.num_epochs, batches, fit.grads_accumulation), per=unit)
    lines = _compare(schedule.model_dump(), resolved.model_dump(), "build_learner.schedule")
    return [f"{line}, one per {unit}" for line in lines]


def _compare(stated: Any, resolved: Any, key: str) -> Iterator[str]:
    """Yield a line for each text in *stated* for which *resolved* has a number."""
    if isinstance(stated, dict):
        for name, value in stated.items():
            yield from _compare(value, resolved[name], f"{key}.{name}")
    elif isinstance(stated, list | tuple):
        for number, value in enumerate(stated):
            yield from _compare(value, resolved[number], f"{key}[{number}]")
    elif isinstance(stated, str) and isinstance(resolved, int):
        yield f"{key}: {stated} is {resolved} {'step' if resolved == 1 else 'steps'}"
