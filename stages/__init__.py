"""The five stages, one file each, the parts that they are built from, one folder each, and `load_model`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
