"""The curves of a run as an image that is part of a web page."""

from base64 import b64encode
from typing import Any

from pipeline import plot_images
from stages.contracts.history import History


def curves_url(history: History) -> str | None:
    """Return the curve of each metric on both splits as a PNG in a ``data:`` URL; None without vl-convert."""
    if not plot_images.is_available():
        return None
    png = plot_images.png(_specification(history), scale=1.5)
    return f"data:image/png;base64,{b64encode(png).decode()}"


def _specification(history: History) -> dict[str, Any]:
    """Return a Vega-Lite specification with a panel for each metric."""
    rows = [
        {"epoch": each.epoch, "metric": each.metric, "split": str(each.split), "value": each.value}
        for each in history
    ]
    panel = {
        "width": 320,
        "height": 200,
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "epoch", "type": "quantitative", "axis": {"tickMinStep": 1}},
            "y": {"field": "value", "type": "quantitative", "title": None, "scale": {"zero": False}},
            "color": {"field": "split", "type": "nominal", "title": None},
        },
    }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": rows},
        "facet": {"field": "metric", "type": "nominal", "title": None},
        "columns": 2,
        "spec": panel,
        "resolve": {"scale": {"y": "independent"}},
    }
