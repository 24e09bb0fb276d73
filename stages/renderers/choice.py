"""Which renderer fits where the output goes."""

import sys

from stages.contracts.events import Renderer
from stages.renderers.live import LiveRenderer
from stages.renderers.plain import PlainRenderer


def default_renderer() -> Renderer:
    """The live one on a terminal, the plain one elsewhere."""
    return LiveRenderer() if sys.stdout.isatty() else PlainRenderer()
