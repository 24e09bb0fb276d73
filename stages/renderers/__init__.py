"""Displays of a run: a live view, a line per epoch, log records. Renderers change no number of a run."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
