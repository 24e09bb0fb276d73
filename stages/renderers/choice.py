"""Which renderer fits where the output goes."""

import os
import sys

from stages import renderers  # its names are loaded when asked for: a run in a pipe loads no plots
from stages.contracts.errors import ParamsError
from stages.contracts.events import Renderer

VARIABLE = "LEARNER_RENDERER"
NAMES = ("live", "plain", "none")


def default_renderer() -> Renderer:
    """Return the renderer that `renderer_name` names."""
    match renderer_name():
        case "live":
            return renderers.LiveRenderer()
        case "plain":
            return renderers.PlainRenderer()
        case _:
            return renderers.NoRenderer()


def renderer_name() -> str:
    """Return the value of ``LEARNER_RENDERER``: ``live``, ``plain`` or ``none``.

    If it is not set, the name is ``live`` on a terminal and ``plain`` elsewhere. Raises `ParamsError` for any
    other value.
    """
    name = os.environ.get(VARIABLE) or ("live" if _can_draw() else "plain")
    if name not in NAMES:
        raise ParamsError(f"{VARIABLE} is {name!r}: set it to live, plain or none, or not at all")
    return name


def _can_draw() -> bool:
    """Whether standard output is a terminal that can move its cursor."""
    return os.name == "posix" and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
