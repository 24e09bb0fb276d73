"""The renderer that `LEARNER_RENDERER` names, or the default for standard output."""

import os
import sys

from stages import renderers  # loads its names on first access: a run in a pipe imports no plotext
from stages.contracts.errors import ParamsError
from stages.contracts.events import Renderer

VARIABLE = "LEARNER_RENDERER"
RENDERER_NAMES = ("live", "plain", "none")


def default_renderer() -> Renderer:
    """Return a new renderer of the kind that `read_renderer_name` returns."""
    match read_renderer_name():
        case "live":
            return renderers.LiveRenderer()
        case "plain":
            return renderers.PlainRenderer()
        case _:
            return renderers.NoRenderer()


def read_renderer_name() -> str:
    """Return the value of ``LEARNER_RENDERER``: ``live``, ``plain`` or ``none``.

    If it is not set or empty, the name is ``live`` on a terminal and ``plain`` elsewhere. Raises
    `ParamsError` for any other value.
    """
    name = os.environ.get(VARIABLE) or ("live" if _can_draw() else "plain")
    if name not in RENDERER_NAMES:
        raise ParamsError(f"{VARIABLE} is {name!r}. Set it to live, plain or none, or unset it")
    return name


def _can_draw() -> bool:
    """Return whether standard output is a terminal that can move its cursor."""
    return os.name == "posix" and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
