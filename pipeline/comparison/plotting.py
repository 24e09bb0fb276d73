"""What ``learner plot`` does: one metric of several runs, in the terminal or as an image."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from pipeline import plot_images
from pipeline.comparison.arranging import shown_metrics
from pipeline.comparison.gathering import compared, sources
from pipeline.comparison.points import Drawn, Point, drawn
from pipeline.comparison.runs import Comparison
from pipeline.comparison.specs import colours, curves_spec, has_points
from pipeline.comparison.terminal import terminal_charts
from stages.contracts.errors import StageError
from stages.contracts.files import written_whole

IMAGES = {"svg": plot_images.svg, "png": plot_images.png}
ROWS = 16
"""Of a chart in a terminal."""
Curves = Mapping[str, Mapping[str, Sequence[Point]]]
"""``split/metric`` to run to points."""


def plot(metric: str, revs: Sequence[str], images: Mapping[str, Path], *, iterations: bool) -> None:
    """Draw *metric* of *revs*: as *images*, by their form, or in the terminal where there are none.

    Raises `ParamsError` for a metric or rev that is none, `StageError` where nothing of it is cached.
    """
    found = sources(revs or None)
    comparison = compared(found)
    names = shown_metrics(comparison, [metric])
    curves = _batches(drawn(found), names) if iterations else _epochs(comparison, names)
    runs = [run.name for run in comparison.runs]
    if not any(curves.values()):
        raise StageError(f"no run has {metric!r} of every batch: fit writes it from version 4 on")
    for form, path in images.items():
        with written_whole(path) as file:
            file.write(IMAGES[form](_spec(metric, curves, runs, x="step" if iterations else "epoch")))
        typer.echo(f"wrote {path}")
    if not images:
        width = min(shutil.get_terminal_size().columns, 120)
        Console(width=width, highlight=False).print(terminal_charts(curves, runs, width, ROWS), end="")


def _epochs(comparison: Comparison, names: Sequence[str]) -> Curves:
    return {
        name: {
            run.name: list(run.metrics[name].series.items()) for run in comparison.runs if name in run.metrics
        }
        for name in names
    }


def _batches(runs: Mapping[str, Drawn], names: Sequence[str]) -> Curves:
    return {
        name: {run: each.iterations[name] for run, each in runs.items() if name in each.iterations}
        for name in names
    }


def _spec(metric: str, curves: Curves, runs: Sequence[str], *, x: str) -> dict[str, Any]:
    series = {
        (run, name.partition("/")[0]): points
        for name, by_run in curves.items()
        for run, points in by_run.items()
    }
    if not has_points(series):
        raise StageError(f"{metric!r} has no finite number in any of these runs: there is nothing to draw")
    spec = curves_spec(series, x=x, title=metric.rpartition("/")[2], colour_of=colours(runs))
    return spec | {"width": 640, "height": 380, "background": "white"}
