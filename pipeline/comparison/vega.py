"""Vega, from the extra ``page``: plots as SVG and PNG, and the libraries that a page carries with it."""

import json
from typing import Any

from stages.contracts.errors import StageError

try:
    import vl_convert
except ImportError:  # the extra is not installed, and most commands need none of it
    vl_convert = None

VERSION = "6.4"
"""Of Vega-Lite: that of the Vega which comes with it. It takes DVC's templates, which are of 5, too."""


def libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    return str(_converter().javascript_bundle(vl_version=VERSION))


def svg(spec: dict[str, Any]) -> bytes:
    """*spec*, in Vega-Lite, as an image."""
    return str(_converter().vegalite_to_svg(json.dumps(spec), vl_version=VERSION)).encode()


def png(spec: dict[str, Any]) -> bytes:
    """The same, in twice the resolution of a plain screen."""
    return bytes(_converter().vegalite_to_png(json.dumps(spec), vl_version=VERSION, scale=2))


def _converter() -> Any:
    if vl_convert is None:
        raise StageError(
            "this needs vl-convert, which is not installed: pip install 'learner-pipeline[page]', or "
            "pip install vl-convert-python"
        )
    return vl_convert
