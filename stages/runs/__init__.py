"""Where a run works until its results are published: its store, who works in it, and what is left of it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
