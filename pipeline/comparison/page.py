"""A comparison as one page of HTML that carries all it needs: it asks for nothing, and works offline.

What params and names say is data, which the page only ever shows as text; no script runs in it but the
two that it is made with.
"""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from pipeline import plot_images
from pipeline.comparison.arranging import View, arranged, shown_metrics
from pipeline.comparison.page_curves import Tree, confusion_data, curves_data
from pipeline.comparison.points import Drawn
from pipeline.comparison.runs import Comparison, Run
from pipeline.comparison.specs import colours
from pipeline.comparison.tables import ABSENT, Column, columns, plain
from stages.contracts.history import Direction


def page(comparison: Comparison, drawn: Mapping[str, Drawn], view: View) -> str:
    """The page. Raises `StageError` where the extra ``page`` is not installed."""
    parts = files("pipeline.comparison") / "web"
    scripts = {
        "vega": _closed(plot_images.vega_script()),
        "js": (parts / "page.js").read_text(encoding="utf-8"),
    }
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
    """The data of the page: columns with a value for each run, in the order of ``runs``."""
    runs = arranged(comparison, view)
    chosen = shown_metrics(comparison, view.metrics or comparison.metrics)
    colour_of = colours([run.name for run in comparison.runs])
    of_runs = [drawn.get(run.name, Drawn()) for run in runs]
    return {
        "summary": _summary(comparison),
        "first": comparison.runs[0].name,
        "runs": [
            {"name": run.name, "sha": run.sha, "colour": colour_of[run.name], "notes": list(run.notes)}
            for run in runs
        ],
        "columns": [_column(comparison, column, runs) for column in columns(comparison, view)],
        "params": _params(runs),
        **curves_data(runs, of_runs, chosen),
        "confusion": confusion_data(of_runs),
    }


def _summary(comparison: Comparison) -> str:
    count = len(comparison.runs)
    differing = len(comparison.differing)
    return (
        f"{count} run{'s' * (count != 1)}, {differing or 'no'} param{'s' * (differing != 1)} that "
        f"differ{'s' * (differing == 1)}"
    )


def _params(runs: Sequence[Run]) -> dict[str, list[str | None]]:
    keys = dict.fromkeys(key for run in runs for key in run.params)
    return {key: [plain(run.params[key]) if key in run.params else None for run in runs] for key in keys}


def _column(comparison: Comparison, column: Column, runs: Sequence[Run]) -> Tree:
    values = [column.value(run) for run in runs]
    best = _best(comparison, column.key, values)
    return {
        "title": column.title,
        "key": column.key,
        "numeric": column.numeric,
        "shown": [ABSENT if value is None else column.shown(value) for value in values],
        "order": [_order(value) for value in values],
        "best": [place for place, value in enumerate(values) if value is not None and value == best],
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


def _json(data: Tree) -> str:
    """As JSON in which no text can end the script that holds it."""
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")


def _closed(script: str) -> str:
    r"""*script* without what would end its element: in JavaScript's texts ``<\/`` says the same."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
