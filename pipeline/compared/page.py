"""A comparison as one page of HTML that carries all it needs: it asks for nothing, and works offline.

What params and names say is data, which the page only ever shows as text; no script runs in it but the
two that it is made with.
"""

import base64
import hashlib
import json
import math
from collections.abc import Collection, Mapping
from importlib.resources import files
from typing import Any

from pipeline.compared import vega
from pipeline.compared.arranging import View, arranged, shown_metrics
from pipeline.compared.points import Drawn
from pipeline.compared.runs import Comparison, Run
from pipeline.compared.specs import colours, confusion_spec, curves_spec, has_points
from pipeline.compared.tables import ABSENT, Column, columns, plain
from stages.contracts.history import Direction

Tree = dict[str, Any]


def page(comparison: Comparison, drawn: Mapping[str, Drawn], view: View) -> str:
    """The page. Raises `StageError` where the extra ``page`` is not installed."""
    parts = files("pipeline.compared") / "web"
    scripts = {"vega": _closed(vega.libraries()), "js": (parts / "page.js").read_text(encoding="utf-8")}
    filled = {
        **scripts,
        "css": (parts / "page.css").read_text(encoding="utf-8"),
        "data": _json(_data(comparison, drawn, view)),
        "hashes": " ".join(map(_hash, scripts.values())),
    }
    text = (parts / "page.html").read_text(encoding="utf-8")
    before, *rest = text.split("{")  # once through, so that nothing filled in is looked at again
    return before + "".join(filled[name] + after for name, _, after in (each.partition("}") for each in rest))


def _data(comparison: Comparison, drawn: Mapping[str, Drawn], view: View) -> Tree:
    runs = arranged(comparison, view)
    chosen = shown_metrics(comparison, view.metrics or comparison.metrics)
    colour_of = colours([run.name for run in comparison.runs])
    return {
        "summary": _summary(comparison),
        "first": comparison.runs[0].name,
        "runs": [_run(run, colour_of[run.name]) for run in runs],
        "columns": [_column(comparison, column, runs) for column in columns(comparison, view)],
        "params": list(dict.fromkeys(key for run in runs for key in run.params)),
        "charts": {
            "epochs": _epoch_charts(comparison, chosen, colour_of),
            "iterations": _iteration_charts(drawn, chosen, colour_of),
        },
        "confusion": {
            name: confusion_spec(name, each.confusion) for name, each in drawn.items() if each.confusion
        },
    }


def _summary(comparison: Comparison) -> str:
    count = len(comparison.runs)
    differing = len(comparison.differing)
    return (
        f"{count} run{'s' * (count != 1)}, {differing or 'no'} param{'s' * (differing != 1)} that "
        f"differ{'s' * (differing == 1)}"
    )


def _run(run: Run, colour: str) -> Tree:
    return {
        "name": run.name,
        "sha": run.sha,
        "colour": colour,
        "notes": list(run.notes),
        "params": {key: plain(value) for key, value in run.params.items()},
    }


def _column(comparison: Comparison, column: Column, runs: tuple[Run, ...]) -> Tree:
    values = [column.value(run) for run in runs]
    best = _best(comparison, column.key, values)
    return {
        "title": column.title,
        "key": column.key,
        "numeric": column.numeric,
        "cells": [
            {
                "shown": ABSENT if value is None else column.shown(value),
                "order": _order(value),
                "best": value is not None and value == best,
            }
            for value in values
        ],
    }


def _best(comparison: Comparison, key: str, values: list[Any]) -> Any:
    """The best of a metric's best values, where there is more than one run to be better than."""
    name = key.removesuffix(" best")
    better = next((run.metrics[name].better for run in comparison.runs if name in run.metrics), None)
    there = [value for value in values if value is not None]
    if name == key or better is None or len(there) < 2:
        return None
    return min(there) if better is Direction.LOWEST else max(there)


def _order(value: Any) -> float | str | None:
    """What the page sorts by."""
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    return None if value is None else plain(value)


def _epoch_charts(
    comparison: Comparison, chosen: Collection[str], colour_of: Mapping[str, str]
) -> list[Tree]:
    curves: dict[str, dict[tuple[str, str], Any]] = {}
    for name in chosen:
        split, _, metric = name.partition("/")
        for run in comparison.runs:
            if name in run.metrics:
                curves.setdefault(metric, {})[run.name, split] = run.metrics[name].series.items()
    return _charts(curves, "epoch", colour_of)


def _iteration_charts(
    drawn: Mapping[str, Drawn], chosen: Collection[str], colour_of: Mapping[str, str]
) -> list[Tree]:
    curves: dict[str, dict[tuple[str, str], Any]] = {}
    for run, each in drawn.items():
        for name in set(chosen) & set(each.iterations):
            split, _, metric = name.partition("/")
            curves.setdefault(f"{metric}, {split}", {})[run, split] = each.iterations[name]
    return _charts(curves, "step", colour_of)


def _charts(
    curves: Mapping[str, Mapping[tuple[str, str], Any]], x: str, colour_of: Mapping[str, str]
) -> list[Tree]:
    return [
        {"title": title, "spec": curves_spec(series, x=x, title=title, colour_of=colour_of)}
        for title, series in sorted(curves.items())
        if has_points(series)
    ]


def _json(data: Tree) -> str:
    """As JSON in which no text can end the script that holds it."""
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")


def _closed(script: str) -> str:
    r"""*script* without what would end its element: in JavaScript's texts ``<\/`` says the same."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
