"""DVC's own plot specifications, filled with what is known of the runs: what `dvc plots` would show."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dvc.repo import Repo
from dvc_render.exceptions import DvcRenderError
from dvc_render.vega import VegaRenderer

from pipeline.comparison.points import Point
from stages.contracts.errors import StageError

CONFUSION = "confusion_counts"
"""The template that dvc.yaml names for the confusion matrix."""
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
"""Told apart on white and on black; the first ones also by most who see fewer colours."""
DASHES = {"train": [5, 4], "valid": [1, 0]}
Spec = dict[str, Any]
Series = Mapping[tuple[str, str], Iterable[Point]]
"""Run and split to points."""


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each run; from the eleventh on they come again."""
    return {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(names)}


def has_points(series: Series) -> bool:
    """Whether anything in *series* is a finite number, which alone can be drawn."""
    return any(math.isfinite(value) for curve in series.values() for _, value in curve)


def curves_spec(series: Series, *, x: str, title: str, colour_of: Mapping[str, str]) -> Spec:
    """DVC's ``linear`` of *series*, which `has_points`: a colour a run, a dash a split."""
    spec = empty_curves_spec({split for _, split in series}, x=x, title=title, colour_of=colour_of)
    spec["data"]["values"] = [
        {"rev": run, "split": split, x: step, "value": value}
        for (run, split), curve in series.items()
        for step, value in curve
        if math.isfinite(value)
    ]
    return spec


def empty_curves_spec(splits: Collection[str], *, x: str, title: str, colour_of: Mapping[str, str]) -> Spec:
    """The same without points: the template looks for new runs in each of them, which takes long."""
    spec = _filled(
        "linear", {"rev": "", "split": "", x: 0, "value": 0}, x=x, y="value", title=title, y_label=title
    )
    spec["encoding"]["color"] = _scale("rev", "run", colour_of)
    if len(splits) > 1:
        spec["encoding"]["strokeDash"] = _scale("split", "split", DASHES)
    smoothed, *_ = spec["layer"]
    smoothed["transform"][0]["groupby"] = ["rev", "split"]
    spec["layer"][-1]["transform"][0]["calculate"] = "datum.rev + ' ' + datum.split"
    return spec


def empty_confusion_spec() -> Spec:
    """Our template ``confusion_counts`` without points. Raises `StageError` if the project has lost it."""
    return _filled(
        CONFUSION, {"rev": "", "actual": "", "predicted": "", "count": 0}, x="predicted", y="actual", title=""
    )


def _filled(template: str, point: dict[str, Any], **properties: str) -> Spec:
    """*template* without data, filled for points that are like *point*."""
    folder = Path(Repo.find_root()) / ".dvc" / "plots"
    try:
        renderer = VegaRenderer([point], "", template=template, template_dir=str(folder), **properties)
        spec: Spec = renderer.get_filled_template(strict=False)
    except (DvcRenderError, OSError, ValueError) as error:
        raise StageError(
            f"the plot template {template!r} cannot be used ({error}): `git checkout {folder}` brings it back"
        ) from error
    spec.pop("$schema", None)  # an address of the version that the template was written for
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
