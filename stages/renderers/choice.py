"""Which renderer fits where the output goes."""

import os
import sys

from stages import renderers  # its names are loaded when asked for: a run in a pipe loads no plots
from stages.contracts.errors import ParamsError
from stages.contracts.events import Renderer

VARIABLE = "LEARNER_RENDERER"


def default_renderer() -> Renderer:
    """What the variable ``LEARNER_RENDERER`` names: ``live``, ``plain`` or ``none``.

    Where it is not set, the live one on a terminal and the plain one elsewhere. Raises `ParamsError` on
    any other value.
    """
    name = os.environ.get(VARIABLE) or ("live" if _can_draw() else "plain")
    match name:
        case "live":
            return renderers.LiveRenderer()
        case "plain":
            return renderers.PlainRenderer()
        case "none":
            return renderers.NoRenderer()
        case _:
            raise ParamsError(f"{VARIABLE} is {name!r}: set it to live, plain or none, or not at all")


def _can_draw() -> bool:
    """Whether standard output is a terminal that can move its cursor."""
    return os.name == "posix" and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
