"""A comparison as text for people, Markdown, CSV and JSON."""

import csv
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from pipeline.comparison.arranging import View, arranged, shown_metrics
from pipeline.comparison.runs import Comparison, Measured, Run
from stages.contracts.text import number, printable, rounded, to_json

ABSENT = "-"
AS_GIVEN = View()


@dataclass(frozen=True)
class Column:
    """One column: what it is of a run, as a value and as people read it."""

    title: str
    """Short, for people."""
    key: str
    """The same in full, for programs."""
    value: Callable[[Run], Any]
    shown: Callable[[Any], str]
    numeric: bool = True


def columns(comparison: Comparison, view: View) -> list[Column]:
    """Name, the params that differ, of each metric last, best and delta, then epochs, time, cache."""
    found = [Column("run", "run", lambda run: run.name, str, numeric=False)]
    names = short_names([key for run in comparison.runs for key in run.params])
    found += [_param_column(key, names[key]) for key in comparison.differing]
    for name in shown_metrics(comparison, view.metrics):
        found += _metric_columns(comparison, name)
    return [
        *found,
        Column("epochs", "epochs", lambda run: run.epochs, str),
        Column("time", "seconds", lambda run: run.seconds, duration),
        Column(
            "cached",
            "cached",
            lambda run: run.cached,
            lambda cached: "yes" if cached else "no",
            numeric=False,
        ),
    ]


def text_table(comparison: Comparison, view: View = AS_GIVEN) -> str:
    """Columns as wide as what is in them, and below them what is to be said of a run."""
    chosen, cells = _cells(comparison, view)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            f"{cell:>{width}}" if column.numeric else f"{cell:<{width}}"
            for cell, width, column in zip(row, widths, chosen, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join([*lines, *_notes(comparison)]) + "\n"


def markdown_table(comparison: Comparison, view: View = AS_GIVEN) -> str:
    """A table as GitHub shows it, to be pasted into a pull request."""
    chosen, (header, *rows) = _cells(comparison, view)
    rule = ["---:" if column.numeric else ":---" for column in chosen]
    lines = [f"| {' | '.join(map(_escaped, row))} |" for row in (header, rule, *rows)]
    notes = [f"\n{_escaped(note)}" for note in _notes(comparison)]
    return "\n".join([*lines, *notes]) + "\n"


def csv_table(comparison: Comparison, view: View = AS_GIVEN) -> str:
    """Every value in full, empty where there is none."""
    chosen = columns(comparison, view)
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([column.key for column in chosen])
    for run in arranged(comparison, view):
        writer.writerow(["" if (v := column.value(run)) is None else plain(v) for column in chosen])
    return file.getvalue()


def json_table(comparison: Comparison, view: View = AS_GIVEN) -> str:
    """Everything that is known, in the order asked for; no number is the text ``"NaN"`` or ``"inf"``."""
    names = shown_metrics(comparison, view.metrics) if view.metrics else comparison.metrics
    runs = [_json_run(comparison, run, names) for run in arranged(comparison, view)]
    first = comparison.runs[0].name if comparison.runs else None
    return to_json({"first": first, "differing": list(comparison.differing), "runs": runs}) + "\n"


def duration(seconds: float) -> str:
    """``7.2 s``, ``3 min 5 s``, ``2 h 3 min``."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def plain(value: Any) -> str:
    """*value* as params.yaml would have it, on one line."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return number(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def signed(value: float) -> str:
    """A difference, with its sign."""
    if value != value:
        return "NaN"
    return "0" if value == 0 else f"{'+' if value > 0 else '-'}{rounded(abs(value), 3)}"


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Each dotted key to as much of its end as no other ends in."""
    ends = Counter(end for key in set(keys) for end in _ends(key))
    return {key: next((end for end in _ends(key) if ends[end] == 1), key) for key in keys}


def _ends(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[place:]) for place in reversed(range(len(parts)))]


def _param_column(key: str, title: str) -> Column:
    return Column(title, key, lambda run: run.params.get(key), plain)


def _metric_columns(comparison: Comparison, name: str) -> list[Column]:
    def of(run: Run) -> Measured | None:
        return run.metrics.get(name)

    def best(run: Run) -> float | None:
        found = of(run)
        return None if found is None else found.best

    def epoch(run: Run) -> int | None:
        found = of(run)
        return None if found is None else found.best_epoch

    def last(run: Run) -> float | None:
        found = of(run)
        return None if found is None else found.last

    return [
        Column(name, name, last, _rounded),
        Column("best", f"{name} best", best, _rounded),
        Column("epoch", f"{name} best epoch", epoch, str),
        Column("Δ", f"{name} delta", lambda run: comparison.delta(run, name), signed),
    ]


def _rounded(value: float) -> str:
    return rounded(value, 3)


def _cells(comparison: Comparison, view: View) -> tuple[list[Column], list[list[str]]]:
    chosen = columns(comparison, view)
    rows = [
        [ABSENT if (v := column.value(run)) is None else printable(column.shown(v)) for column in chosen]
        for run in arranged(comparison, view)
    ]
    return chosen, [[column.title for column in chosen], *rows]


def _notes(comparison: Comparison) -> list[str]:
    return [printable(f"{run.name}: {note}") for run in comparison.runs for note in run.notes]


def _escaped(text: str) -> str:
    for sign in "\\`*_[]|<>":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("&", "&amp;")


def _json_run(comparison: Comparison, run: Run, names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "name": run.name,
        "sha": run.sha,
        "params": dict(run.params),
        "metrics": {
            name: _json_metric(run.metrics[name], comparison.delta(run, name))
            for name in names
            if name in run.metrics
        },
        "epochs": run.epochs,
        "seconds": run.seconds,
        "committed": run.committed.isoformat() if run.committed else None,
        "cached": run.cached,
        "notes": list(run.notes),
    }


def _json_metric(measured: Measured, delta: float | None) -> dict[str, Any]:
    return {
        "first": measured.first,
        "last": measured.last,
        "best": measured.best,
        "best_epoch": measured.best_epoch,
        "better": measured.better.value if measured.better else None,
        "delta": delta,
        "series": {str(epoch): value for epoch, value in measured.series.items()},
    }
