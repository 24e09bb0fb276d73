"""Optimizers and schedules, as params may name them and as the learner drives them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
