"""The table at the end of a run, laid out as Burn prints it."""

import math
from typing import Any

from stages.contracts.history import History, Split

_RULE = "=" * 24
_COLUMNS = ("Min.", "Epoch", "Max.", "Epoch")


def summary_text(history: History, model: Any = None) -> str:
    """For each split and metric the lowest and highest epoch value and where it was.

    Of equal values the minimum names the first epoch and the maximum the last; NaN counts as largest.
    """
    lines = [f"{_RULE} Learner Summary {_RULE}"]
    if model is not None:
        lines += ["Model:", f"{model}", f"Total parameters: {_parameters(model)}"]
    lines += [f"Total Epochs: {history.epochs}", "", ""]
    width = max(len(name) for name in [*history.metrics(), "Metric"])
    lines.append(_row("Split", "Metric".ljust(width), *_COLUMNS))
    lines.append("|-------|-" + "-" * width + "-|" + "|".join(["-" * 10] * 4) + "|")
    for split in Split:
        for metric in history.metrics():
            series = history.series(split, metric)
            if series:
                extremes = _extremes(series)
                lines.append(_row(split.capitalize(), metric.ljust(width), *extremes))
    return "\n".join(lines) + "\n"


def _extremes(series: dict[int, float]) -> tuple[str, str, str, str]:
    def order(epoch: int) -> tuple[bool, float]:
        value = series[epoch]
        return (True, 0.0) if math.isnan(value) else (False, value)

    lowest = min(series, key=lambda epoch: (order(epoch), epoch))
    highest = max(series, key=lambda epoch: (order(epoch), epoch))
    return (_value(series[lowest]), str(lowest), _value(series[highest]), str(highest))


def _value(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if value >= 0.01 or math.isinf(value):
        return f"{value:.3f}"
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _row(split: str, metric: str, *cells: str) -> str:
    return f"| {split:<5} | {metric} | " + " | ".join(f"{cell:<8}" for cell in cells) + " |"


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
