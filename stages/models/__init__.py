"""Built-in models, and the mixins that add training and validation steps to a module."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
