"""The curves of a run as a picture that a web page can hold in itself."""

from base64 import b64encode
from typing import Any

from stages.contracts.history import History

try:
    import vl_convert
except ImportError:
    vl_convert = None  # type: ignore[assignment,unused-ignore]

EXTRA = "pip install 'learner-pipeline[page]'"


def curves_url(history: History) -> str | None:
    """The curve of each metric on both splits, as a PNG in a ``data:`` address; None without vl-convert."""
    if vl_convert is None:
        return None
    png = vl_convert.vegalite_to_png(_specification(history), scale=1.5)
    return f"data:image/png;base64,{b64encode(png).decode()}"


def _specification(history: History) -> dict[str, Any]:
    """A panel for each metric, in Vega-Lite."""
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
