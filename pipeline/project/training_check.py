"""Checks of metrics against the model, the names of files and the rules, and of the spans of a schedule."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any

from pipeline.project.params import Params
from stages.contracts import plugins
from stages.contracts.burn import choose_version
from stages.contracts.errors import StageError
from stages.contracts.history import Split, check_file_names
from stages.models.config import BUILT_IN as MODELS
from stages.optim.run_length import RunLength, unit_of
from stages.optim.schedules import Rule, ScheduleUse, parse_monitor

NAMES = {"loss": "Loss", "accuracy": "Accuracy"}
"""The names of metrics that need no import, by their kinds."""
MEASURED = {
    "cnn": {"loss", "accuracy"},
    "mlp": {"loss", "accuracy"},
    "mlp_regressor": {"loss"},
    "unet": {"loss", "accuracy"},
}
"""Kinds of these metrics that the outputs of the built-in models have the values for."""


@dataclass(frozen=True)
class Plateau:
    """A schedule that follows a metric."""

    needs: frozenset[tuple[Split, str]]


def are_metrics_known(params: Params) -> bool:
    """Return whether `find_metric_mistakes`, which loads torch, would find none."""
    kinds = {metric.kind for metric in params.fit.metrics}
    names = {NAMES.get(kind) for kind in kinds}
    monitored = {name for rule in list_rules(params).values() for _, name in rule.needs}
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
    for key, rule in list_rules(params).items():
        yield key, describe_mistake(checks.check_monitored_metrics, rule, metrics)


def describe_mistake(test: Callable[..., object], *arguments: Any) -> str:
    """Return the message of the `StageError` that *test* raises for *arguments*; empty if it raises none."""
    try:
        test(*arguments)
    except StageError as error:
        return str(error)
    return ""


def list_rules(params: Params) -> Mapping[str, Any]:
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
