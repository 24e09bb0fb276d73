"""A comparison as one HTML page that contains all it needs, makes no request and works offline.

Names and params are data that the page only displays as text. The only scripts that run are the two that it
is built with.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files

from pipeline import plot_images
from pipeline.comparison.collection import PlotData
from pipeline.comparison.page_data import Tree, build_plots_data, build_table_data
from pipeline.comparison.runs import Comparison, ViewOptions

SCRIPTS = ("model.js", "charts.js", "page.js")
"""The parts of the script of the page, in the order in which they run."""


def build_page(comparison: Comparison, plot_data: Mapping[str, PlotData], view: ViewOptions) -> str:
    """Return the page. Raises `StageError` if the extra ``page`` is not installed."""
    parts = files("pipeline.comparison") / "web"
    scripts = {
        "vega": _without_end_tags(plot_images.vega_script()),
        "js": "".join((parts / name).read_text("utf-8") for name in SCRIPTS),
    }
    contents = {
        **scripts,
        "css": (parts / "page.css").read_text("utf-8"),
        "data": _json(build_table_data(comparison, view)),
        "plots": _json(build_plots_data(comparison, plot_data, view)),
        "hashes": " ".join(map(_hash, scripts.values())),
    }
    text = (parts / "page.html").read_text("utf-8")
    before, *rest = text.split("{")  # one pass, so that inserted contents are not searched again
    pieces = (each.partition("}") for each in rest)
    return before + "".join(contents[name] + after for name, _, after in pieces)


def _json(data: Tree) -> str:
    """Return *data* as JSON in which no text can end the script element around it."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _without_end_tags(script: str) -> str:
    r"""Return *script* without text that would end its element; ``<\/`` means the same in JavaScript."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
