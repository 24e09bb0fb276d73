"""Images of Vega-Lite specifications, drawn by vl-convert, which the extra ``page`` installs.

This is the only module that loads vl-convert. It also has the JavaScript of Vega, for pages that work
offline.
"""

import json
from typing import Any

from stages.contracts.errors import StageError

try:
    import vl_convert
except ImportError:  # the extra is not installed, and most commands do not need it
    vl_convert = None

EXTRA = "pip install 'learner-pipeline[page]'"
"""The command that installs vl-convert."""
VEGA_LITE = "6.4"
"""Version of Vega-Lite that matches the Vega in vl-convert; it also accepts DVC's templates, of version 5."""


def is_available() -> bool:
    """Return whether vl-convert is installed."""
    return vl_convert is not None


def vega_script() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script. Raises `StageError` without vl-convert."""
    return str(_converter().javascript_bundle(vl_version=VEGA_LITE))


def draw_image(spec: dict[str, Any], form: str, scale: float = 2.0) -> bytes:
    """Return the Vega-Lite *spec* drawn as *form*: svg, or png with *scale* pixels for each unit of its size.

    Raises `StageError` without vl-convert.
    """
    text, converter = json.dumps(spec), _converter()
    if form == "svg":
        return str(converter.vegalite_to_svg(text, vl_version=VEGA_LITE)).encode()
    return bytes(converter.vegalite_to_png(text, vl_version=VEGA_LITE, scale=scale))


def _converter() -> Any:
    if vl_convert is None:
        raise StageError(f"vl-convert is not installed. Run {EXTRA}, or pip install vl-convert-python")
    return vl_convert
