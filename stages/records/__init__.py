"""Records: files of tensors and numbers, written atomically and read without running code."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
