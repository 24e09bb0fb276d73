"""From gradients to an update: optimizers, schedules, clipping, accumulation, and the guard before them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
