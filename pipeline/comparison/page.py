"""A comparison as one HTML page that contains all it needs, makes no request and works offline.

Names and params are data that the page only displays as text. The only scripts that run are the two that it
is built with.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from pipeline import plot_images
from pipeline.comparison.collection import PlotData
from pipeline.comparison.page_data import Tree, build_plots_data, build_table_data
from pipeline.comparison.runs import Comparison, ViewOptions

SCRIPTS = ("model.js", "charts.js", "state.js", "tables.js", "cards.js", "page.js")
"""The parts of the script of the page, in the order in which they run."""


@dataclass(frozen=True)
class PageContent:
    """The data of a page, as JSON in which no text can end the script element around it."""

    table: str
    plots: str

    @property
    def json(self) -> str:
        """The data as one object."""
        return f'{{"table":{self.table},"plots":{self.plots}}}'

    @cached_property
    def tag(self) -> str:
        """A hash of the data, with the quotes of an HTTP entity tag."""
        return f'"{hashlib.sha256(self.json.encode()).hexdigest()}"'


def build_content(
    comparison: Comparison, plot_data: Mapping[str, PlotData], view: ViewOptions
) -> PageContent:
    """Return the data of the page. Raises `ParamsError` for an unknown metric or sort key."""
    return PageContent(
        _json(build_table_data(comparison, view)), _json(build_plots_data(comparison, plot_data, view))
    )


def build_page(comparison: Comparison, plot_data: Mapping[str, PlotData], view: ViewOptions) -> str:
    """Return the page. Raises `StageError` if the extra ``page`` is not installed."""
    return _fill_template(build_content(comparison, plot_data, view), attributes="", policy="")


def build_watched_page(content: PageContent) -> str:
    """Return the page that asks its server for newer data; otherwise it is the same."""
    attributes = f" data-tag='{content.tag}'"
    return _fill_template(content, attributes=attributes, policy="connect-src 'self'; ")


def _fill_template(content: PageContent, *, attributes: str, policy: str) -> str:
    parts = files("pipeline.comparison") / "web"
    scripts = _scripts()
    contents = {
        **scripts,
        "css": (parts / "page.css").read_text("utf-8"),
        "data": content.table,
        "plots": content.plots,
        "hashes": " ".join(map(_hash, scripts.values())),
        "attributes": attributes,
        "policy": policy,
    }
    text = (parts / "page.html").read_text("utf-8")
    before, *rest = text.split("{")  # one pass, so that inserted contents are not searched again
    pieces = (each.partition("}") for each in rest)
    return before + "".join(contents[name] + after for name, _, after in pieces)


@cache
def _scripts() -> dict[str, str]:
    parts = files("pipeline.comparison") / "web"
    return {
        "vega": _without_end_tags(plot_images.vega_script()),
        "js": "".join((parts / name).read_text("utf-8") for name in SCRIPTS),
    }


def _json(data: Tree) -> str:
    """Return *data* as JSON in which no text can end the script element around it."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _without_end_tags(script: str) -> str:
    r"""Return *script* without text that would end its element; ``<\/`` means the same in JavaScript."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
