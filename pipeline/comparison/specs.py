"""Vega-Lite specifications made from the templates of DVC, so that plots look as in `dvc plots`."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dvc.repo import Repo
from dvc_render.exceptions import DvcRenderError
from dvc_render.vega import VegaRenderer

from pipeline.comparison.curves import CurvePoint
from stages.contracts.errors import StageError

CONFUSION = "confusion_counts"
"""Name of the template for the confusion matrix, as in dvc.yaml."""
PALETTE = (
    "#4269d0",
    "#ff725c",
    "#3ca951",
    "#a463f2",
    "#d69400",
    "#17a2b8",
    "#e0679b",
    "#9c6b4e",
    "#7d828c",
    "#7fa8ef",
)
"""Colors that differ on white and on black; the first ones also for most color-blind readers."""
DASHES = {"train": [5, 4], "valid": [1, 0]}
Spec = dict[str, Any]
Series = Mapping[tuple[str, str], Iterable[CurvePoint]]
"""Run and split to points."""


def assign_colors(names: Sequence[str]) -> dict[str, str]:
    """Return a color for each run; they repeat from the eleventh run on."""
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}


def has_finite_value(series: Series) -> bool:
    """Return whether a value in *series* is finite; only those can be drawn."""
    return any(math.isfinite(value) for curve in series.values() for _, value in curve)


def curves_spec(series: Series, *, x: str, title: str, color_of: Mapping[str, str]) -> Spec:
    """Return DVC's template ``linear`` with *series*: a color for each run, a dash for each split."""
    spec = empty_curves_spec({split for _, split in series}, x=x, title=title, color_of=color_of)
    spec["data"]["values"] = [
        {"rev": run, "split": split, x: step, "value": value}
        for (run, split), curve in series.items()
        for step, value in curve
        if math.isfinite(value)
    ]
    return spec


def empty_curves_spec(splits: Collection[str], *, x: str, title: str, color_of: Mapping[str, str]) -> Spec:
    """Return the same without points.

    With points the template searches each of them for new runs, which is slow.
    """
    spec = _fill_template(
        "linear", {"rev": "", "split": "", x: 0, "value": 0}, x=x, y="value", title=title, y_label=title
    )
    spec["encoding"]["color"] = _scale("rev", "run", color_of)
    if len(splits) > 1:
        spec["encoding"]["strokeDash"] = _scale("split", "split", DASHES)
    smoothed, *_ = spec["layer"]
    smoothed["transform"][0]["groupby"] = ["rev", "split"]
    spec["layer"][-1]["transform"][0]["calculate"] = "datum.rev + ' ' + datum.split"
    return spec


def empty_confusion_spec() -> Spec:
    """Return the template ``confusion_counts`` without points. Raises `StageError` if it is missing."""
    return _fill_template(
        CONFUSION, {"rev": "", "actual": "", "predicted": "", "count": 0}, x="predicted", y="actual", title=""
    )


def _fill_template(template: str, point: dict[str, Any], **properties: str) -> Spec:
    """Return *template* for points with the keys of *point*, without data."""
    folder = Path(Repo.find_root()) / ".dvc" / "plots"
    try:
        renderer = VegaRenderer([point], "", template=template, template_dir=str(folder), **properties)
        spec: Spec = renderer.get_filled_template(strict=False)
    except (DvcRenderError, OSError, ValueError) as error:
        raise StageError(
            f"the plot template {template!r} in {folder} cannot be used: {error}. Run `git checkout {folder}`"
        ) from error
    spec.pop("$schema", None)  # the URL of the version for which the template was written
    spec["data"] = {"values": []}
    return spec


def _scale(field: str, title: str, values: Mapping[str, Any]) -> Spec:
    return {
        "field": field,
        "title": title,
        "type": "nominal",
        "scale": {"domain": list(values), "range": list(values.values())},
        "legend": {"symbolType": "stroke", "symbolSize": 400},
    }
