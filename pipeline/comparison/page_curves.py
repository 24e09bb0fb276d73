"""The curves and confusion matrices of a page, as columns of numbers, so that many runs make a small page."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pipeline.comparison.points import Cell, Drawn, thinned, thinned_steps
from pipeline.comparison.runs import Measured, Run
from pipeline.comparison.specs import empty_confusion_spec, empty_curves_spec

EPOCHS = 256
"""Epochs of a run that the page shows, beside those with an extreme value."""
BATCHES = 256
"""Points of a curve of batches on the page."""
DIGITS = 6
"""Significant digits of a value: a chart is drawn on a few hundred pixels."""
Tree = dict[str, Any]


class _StepColumns:
    """The epochs and steps of all curves; a column that several curves have is stored once."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], int] = {}

    def place(self, steps: Iterable[int]) -> int:
        """Return the place of the column *steps* in `stored`."""
        return self._places.setdefault(tuple(steps), len(self._places))

    @property
    def stored(self) -> list[tuple[int, ...]]:
        """All columns."""
        return list(self._places)


def curves_data(runs: Sequence[Run], drawn: Sequence[Drawn], chosen: Collection[str]) -> Tree:
    """Return the charts of the metrics *chosen*, and the columns of steps that their curves point to."""
    columns = _StepColumns()
    charts = {
        "epochs": _charts(_epoch_curves(runs, chosen, columns), "epoch"),
        "iterations": _charts(_batch_curves(drawn, chosen, columns), "step"),
    }
    return {"charts": charts, "steps": columns.stored}


def confusion_data(drawn: Sequence[Drawn]) -> Tree | None:
    """Return the confusion matrix of each run, None for a run without; None if no run has one.

    The numbers of a cell are its count and, of a part of a matrix, the samples of its actual class.
    """
    if not any(each.confusion for each in drawn):
        return None
    classes: dict[tuple[Cell, ...], int] = {}
    runs = []
    for each in drawn:
        place = classes.setdefault(tuple(cell[:2] for cell in each.confusion), len(classes))
        numbers = [cell[2:] for cell in each.confusion]
        runs.append({"classes": place, "numbers": numbers} if numbers else None)
    return {"spec": empty_confusion_spec(), "runs": runs, "classes": list(classes)}


def shown_epochs(measured: Sequence[Measured]) -> list[int]:
    """Return the epochs of one run that the page shows: at most `EPOCHS`, and the extremes of each curve.

    Extremes are the first and the last epoch, and those with the lowest, the highest and the best value.
    """
    kept = set(thinned_steps(sorted(set().union(*(each.series for each in measured))), EPOCHS))
    for each in measured:
        finite = {epoch: value for epoch, value in each.series.items() if math.isfinite(value)}
        if finite:
            kept |= {
                min(finite),
                max(finite),
                min(finite, key=finite.__getitem__),
                max(finite, key=finite.__getitem__),
            }
        if each.best_epoch is not None:
            kept.add(each.best_epoch)
    return sorted(kept)


def _epoch_curves(
    runs: Sequence[Run], chosen: Collection[str], columns: _StepColumns
) -> dict[str, list[Tree]]:
    charts: dict[str, list[Tree]] = {}
    for place, run in enumerate(runs):
        measured = [run.metrics[name] for name in chosen if name in run.metrics]
        epochs = shown_epochs(measured)
        for each in measured:
            values = [_rounded(each.series.get(epoch)) for epoch in epochs]
            curve = {"run": place, "split": each.split, "x": columns.place(epochs), "y": values}
            charts.setdefault(each.metric, []).append(curve)
    return charts


def _batch_curves(
    drawn: Sequence[Drawn], chosen: Collection[str], columns: _StepColumns
) -> dict[str, list[Tree]]:
    charts: dict[str, list[Tree]] = {}
    for place, run in enumerate(drawn):
        for name in (name for name in chosen if name in run.iterations):
            split, _, metric = name.partition("/")
            points = thinned(run.iterations[name], BATCHES)
            values = [_rounded(value) for _, value in points]
            curve = {
                "run": place,
                "split": split,
                "x": columns.place(step for step, _ in points),
                "y": values,
            }
            charts.setdefault(f"{metric}, {split}", []).append(curve)
    return charts


def _charts(curves: dict[str, list[Tree]], x: str) -> list[Tree]:
    """Return a chart for each title in *curves*; without one that has no finite number."""
    return [
        {
            "title": title,
            "x": x,
            "spec": empty_curves_spec({each["split"] for each in found}, x=x, title=title, colour_of={}),
            "curves": found,
        }
        for title, found in sorted(curves.items())
        if any(value is not None for each in found for value in each["y"])
    ]


def _rounded(value: float | None) -> float | None:
    """Return *value* with `DIGITS` digits; None if it cannot be drawn."""
    return float(f"{value:.{DIGITS}g}") if value is not None and math.isfinite(value) else None
