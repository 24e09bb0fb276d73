"""The table that is printed at the end of a run, in Burn's layout."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages import metrics
from stages.contracts.history import History, Split
from stages.contracts.text import format_fixed, join_names, replace_unprintable, scientific

Tests = Mapping[str, Mapping[str, float]]
"""The value of each metric for each test set, by name."""

_RULE = "=" * 24
MAX_LISTED_NAMES = 8


@dataclass(frozen=True)
class SummaryRow:
    """The lowest and the highest epoch value of a metric on one split."""

    split: str
    """``Train``, ``Valid``, ``Test`` or ``Test (name)``."""
    metric: str
    min: float
    min_epoch: int | None
    """The first epoch with that value; None for a test, which has no epochs."""
    max: float
    max_epoch: int | None
    """The last epoch with that value."""


def summary_rows(history: History, tests: Tests | None = None) -> list[SummaryRow]:
    """Return a row per split and metric with a value: train, valid, test; each in alphabetical order.

    If values are equal, the minimum has the first epoch and the maximum the last; NaN counts as largest. The
    learning rate has no row for valid, although Burn logs a 0 there.
    """
    rows = []
    for split in Split:
        for metric in history.metrics():
            series = history.series(split, metric)
            if series and not (split is Split.VALID and metric == metrics.LearningRateMetric.name):
                rows.append(_row(split.capitalize(), metric, series))
    for tag, values in sorted((tests or {}).items()):
        split_name = f"Test ({tag})" if tag else "Test"
        rows += [SummaryRow(split_name, metric, v, None, v, None) for metric, v in sorted(values.items())]
    return rows


def summary_text(
    history: History,
    model: Any = None,
    *,
    tests: Tests | None = None,
    epochs: int | None = None,
    training: Sequence[str] = (),
) -> str:
    """Return the table; with *model*, also the text of the model, and the lines *training*.

    *epochs* is the number of epochs; by default the last one with a value. Unlike in Burn, a test set has
    rows too, without an epoch, and the text of the model ends with its number of parameters.
    """
    lines = [f"{_RULE} Learner Summary {_RULE}"]
    if model is not None:
        lines += ["Model:", _display(model), *training]
    lines += [f"Total Epochs: {history.epochs if epochs is None else epochs}", "", ""]
    return "\n".join([*lines, *_table(summary_rows(history, tests))]) + "\n"


def training_lines(model: Any, optimizer: Any, scheduler: Any, averaging: Any = None) -> list[str]:
    """Return the lines of the summary about the optimizer, its schedule, averages and frozen parameters."""
    schedule = str(scheduler) if "__str__" in vars(type(scheduler)) else type(scheduler).__name__
    lines = [f"Optimizer: {type(optimizer).__name__}", *_group_lines(optimizer), f"Schedule: {schedule}"]
    if averaging is not None:
        options = ", ".join(f"{name} {value}" for name, value in averaging if name != "kind")
        lines.append(f"Average of the weights: {averaging.kind}, {options}")
    frozen = [
        (name, parameter) for name, parameter in model.named_parameters() if not parameter.requires_grad
    ]
    if frozen:
        names = join_names((name for name, _ in frozen), MAX_LISTED_NAMES)
        total = sum(parameter.numel() for _, parameter in frozen)
        lines.append(f"Frozen parameters: {total} in {names}")
    return lines


def _group_lines(optimizer: Any) -> list[str]:
    """Return a line for each of several groups, with the options in which it differs from the first."""
    first, *others = optimizer.param_groups
    lines = []
    for number, group in enumerate([first, *others] if others else [], start=1):
        options = [
            f"{name} {value}"
            for name, value in group.items()
            if name not in ("params", "lr", "initial_lr") and value != first.get(name)
        ]
        if group is not first and group["lr"] != first["lr"] and first["lr"]:
            options.insert(0, f"learning rate times {group['lr'] / first['lr']:.3g}")
        total = sum(parameter.numel() for parameter in group["params"])
        lines.append(", ".join([f"  group {number}: {total} parameters", *options]))
    return lines


def _row(split: str, metric: str, series: Mapping[int, float]) -> SummaryRow:
    def order(epoch: int) -> tuple[bool, float, int]:
        value = series[epoch]
        return (True, 0.0, epoch) if math.isnan(value) else (False, value, epoch)

    lowest = min(series, key=order)
    highest = max(series, key=order)
    return SummaryRow(split, metric, series[lowest], lowest, series[highest], highest)


def _table(rows: list[SummaryRow]) -> list[str]:
    """Return the lines of the table: two columns as wide as their content, then cells of nine characters."""
    names = [(replace_unprintable(row.split), replace_unprintable(row.metric)) for row in rows]
    split = max(len(text) for text in ["Split", *(name for name, _ in names)])
    metric = max(len(text) for text in ["Metric", *(name for _, name in names)])
    lines = [
        f"| {'Split':<{split}} | {'Metric':<{metric}} | Min.     | Epoch    | Max.     | Epoch    |",
        f"|{'-' * (split + 2)}|{'-' * (metric + 2)}|----------|----------|----------|----------|",
    ]
    for row, (split_name, metric_name) in zip(rows, names, strict=True):
        cells = (_value(row.min), _epoch(row.min_epoch), _value(row.max), _epoch(row.max_epoch))
        filled = "".join(f" {cell:<9}|" for cell in cells)
        lines.append(f"| {split_name:<{split}} | {metric_name:<{metric}} |{filled}")
    return lines


def _value(value: float) -> str:
    return scientific(value, 3) if value < 0.01 else format_fixed(value, 3)


def _epoch(epoch: int | None) -> str:
    return "-" if epoch is None else str(epoch)


def _display(model: Any) -> str:
    match model:
        case object(parameters=parameters):
            return f"{model}\nTotal parameters: {sum(parameter.numel() for parameter in parameters())}"
    return str(model)
