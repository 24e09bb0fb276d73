"""The steps of a schedule that params.yaml states as shares of the run."""

from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

from pipeline.project.params import Params
from stages.contracts.burn import choose_version
from stages.data.storage import read_info
from stages.optim.run_length import RunLength, unit_of
from stages.optim.schedules import Rule


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
    batches = ceil(read_info(dataset).counts["train"] / fit.batch_size)
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
