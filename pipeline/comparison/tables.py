"""Tables of a comparison: text for people, Markdown, CSV and JSON."""

import csv
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from operator import attrgetter
from typing import Any, Literal

from rich.cells import cell_len

from pipeline.comparison.runs import (
    Comparison,
    MetricCurve,
    RunSummary,
    ViewOptions,
    select_metrics,
    sort_runs,
)
from stages.contracts.text import format_duration, format_rounded, number, parse_number, replace_unprintable

ABSENT = "-"
Role = Literal["run", "param", "last", "best", "epoch", "delta", "fact"]
"""What a column shows: the name, a param, a value of a metric, its best epoch, its delta, or another fact."""
DEFAULT_VIEW = ViewOptions()
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "＝", "＋", "－", "＠")
"""Signs with which a formula begins in spreadsheets; the wide ones in those of East Asia."""


@dataclass(frozen=True)
class TableColumn:
    """A column: functions that get the value of a run and format it."""

    title: str
    """Short name, for people."""
    key: str
    """Full name, for programs."""
    value: Callable[[RunSummary], Any]
    text: Callable[[Any], str]
    numeric: bool = True
    role: Role = "fact"
    metric: str | None = None
    """``split/metric`` of which it shows a value."""


def columns(comparison: Comparison, view: ViewOptions) -> list[TableColumn]:
    """Return the columns: run, differing params, last, best and delta of each metric, epochs, time, cache."""
    chosen = [TableColumn("run", "run", attrgetter("name"), str, numeric=False, role="run")]
    names = short_names(comparison.params)
    chosen += [_param_column(key, names[key]) for key in comparison.differing]
    for name in select_metrics(comparison, view.metrics):
        chosen += metric_columns(comparison, name)
    return [
        *chosen,
        TableColumn("epochs", "epochs", attrgetter("epochs"), str),
        TableColumn("time", "seconds", attrgetter("seconds"), format_duration),
        TableColumn("cached", "cached", attrgetter("cached"), _yes_or_no, numeric=False),
    ]


def text_table(comparison: Comparison, view: ViewOptions = DEFAULT_VIEW) -> str:
    """Return a table for terminals, with aligned columns, and the notes of the runs below it."""
    chosen, cells = _cells(comparison, view)
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            align(cell, width, ">" if column.numeric else "<")
            for cell, width, column in zip(row, widths, chosen, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join([*lines, *list_notes(comparison)]) + "\n"


def align(cell: str, width: int, side: str) -> str:
    """Return *cell*, aligned to the *side* ``<`` or ``>``, in *width* columns; a wide character takes two."""
    return f"{cell:{side}{width - cell_len(cell) + len(cell)}}"


def markdown_table(comparison: Comparison, view: ViewOptions = DEFAULT_VIEW) -> str:
    """Return a table in the Markdown of GitHub, for pull requests."""
    chosen, (header, *rows) = _cells(comparison, view)
    rule = ["---:" if column.numeric else ":---" for column in chosen]
    lines = [f"| {' | '.join(map(_escape, row))} |" for row in (header, rule, *rows)]
    notes = [f"\n{_escape(note)}" for note in list_notes(comparison)]
    return "\n".join([*lines, *notes]) + "\n"


def csv_table(comparison: Comparison, view: ViewOptions = DEFAULT_VIEW) -> str:
    """Return a table in CSV with full precision; a missing value is an empty cell."""
    chosen = columns(comparison, view)
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([_to_cell(column.key) for column in chosen])
    for run in sort_runs(comparison, view):
        writer.writerow(["" if (v := column.value(run)) is None else _to_cell(v) for column in chosen])
    return file.getvalue()


def _to_cell(value: Any) -> str:
    """Return *value* for CSV, with an apostrophe before a text that spreadsheets would read as a formula."""
    text = replace_unprintable(format_value(value), keep="\t")
    is_formula = isinstance(value, str) and text.startswith(FORMULA_SIGNS) and parse_number(text) is None
    return f"'{text}" if is_formula else text


def comparison_values(comparison: Comparison, view: ViewOptions = DEFAULT_VIEW) -> dict[str, Any]:
    """Return all values for a program, in the order of *view*."""
    names = select_metrics(comparison, view.metrics) if view.metrics else comparison.metrics
    runs = [_json_run(comparison, run, names) for run in sort_runs(comparison, view)]
    return {
        "first": comparison.runs[0].name,
        "baseline": comparison.baseline.name,
        "differing": list(comparison.differing),
        "runs": runs,
    }


def format_value(value: Any) -> str:
    """Return *value* on one line, as in params.yaml."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return number(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def format_difference(value: float) -> str:
    """Return the difference *value* with its sign."""
    if value != value:
        return "NaN"
    return "0" if value == 0 else f"{'+' if value > 0 else '-'}{format_rounded(abs(value), 3)}"


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return each dotted key to the shortest end of it that no other key has."""
    ends = Counter(end for key in set(keys) for end in _ends(key))
    return {key: next((end for end in _ends(key) if ends[end] == 1), key) for key in keys}


def _ends(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[place:]) for place in reversed(range(len(parts)))]


def _param_column(key: str, title: str) -> TableColumn:
    return TableColumn(title, key, lambda run: run.params.get(key), format_value, role="param")


def metric_columns(comparison: Comparison, name: str) -> list[TableColumn]:
    """Return the columns of the metric *name*: its last and its best value, the best epoch, and the delta."""

    def value_of(attribute: str) -> Callable[[RunSummary], Any]:
        value = attrgetter(attribute)
        return lambda run: value(run.metrics[name]) if name in run.metrics else None

    delta, exceeds = partial(comparison.delta, metric=name), partial(comparison.exceeds_noise, metric=name)

    chosen = [
        TableColumn(name, name, value_of("last"), _round, role="last", metric=name),
        TableColumn("best", f"{name} best", value_of("best"), _round, role="best", metric=name),
        TableColumn("epoch", f"{name} best epoch", value_of("best_epoch"), str, role="epoch", metric=name),
        TableColumn("Δ", f"{name} delta", delta, format_difference, role="delta", metric=name),
    ]
    if any(run.metrics[name].deviations for run in comparison.runs if name in run.metrics):
        chosen[2:2] = [TableColumn("±", f"{name} deviation", value_of("deviation"), _round)]
        chosen.append(TableColumn("Δ > ±", f"{name} exceeds noise", exceeds, _yes_or_no, numeric=False))
    return chosen


def _yes_or_no(value: bool) -> str:  # noqa: FBT001  a value of a column
    return "yes" if value else "no"


_round = partial(format_rounded, decimals=3)


def _cells(comparison: Comparison, view: ViewOptions) -> tuple[list[TableColumn], list[list[str]]]:
    chosen = columns(comparison, view)
    rows = [
        [
            ABSENT if (v := column.value(run)) is None else replace_unprintable(column.text(v))
            for column in chosen
        ]
        for run in sort_runs(comparison, view)
    ]
    return chosen, [[replace_unprintable(column.title) for column in chosen], *rows]


def list_notes(comparison: Comparison) -> list[str]:
    """Return a line for each note of a run, for a terminal."""
    return [replace_unprintable(f"{run.name}: {note}") for run in comparison.runs for note in run.notes]


def _escape(text: str) -> str:
    for sign in "\\`*_[]|<>#~":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("&", "&amp;")


def _json_run(comparison: Comparison, run: RunSummary, names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "name": run.name,
        "sha": run.sha,
        "params": {key: _json_value(value) for key, value in run.params.items()},
        "metrics": {
            name: _json_metric(
                run.metrics[name], comparison.delta(run, name), comparison.exceeds_noise(run, name)
            )
            for name in names
            if name in run.metrics
        },
        "epochs": run.epochs,
        "seconds": run.seconds,
        "committed": run.committed.isoformat() if run.committed else None,
        "cached": run.cached,
        "notes": list(run.notes),
    }


def _json_value(value: Any) -> Any:
    """Return *value* with text in place of what JSON does not have, such as a date in YAML."""
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _json_metric(curve: MetricCurve, delta: float | None, exceeds: bool | None) -> dict[str, Any]:  # noqa: FBT001  a fact
    noise = {"deviation": curve.deviation, "exceeds_noise": exceeds} if curve.deviations else {}
    content = {
        "first": curve.first,
        "last": curve.last,
        "best": curve.best,
        "best_epoch": curve.best_epoch,
        "better": curve.better,
        "delta": delta,
        "series": {str(epoch): value for epoch, value in curve.series.items()},
    }
    return content | noise
