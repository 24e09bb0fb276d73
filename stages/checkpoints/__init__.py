"""Checkpoints on disk, and the rules that choose which to keep."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
