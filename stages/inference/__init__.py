"""Use of a trained model: its weights, the preprocessing of its training, and files of predictions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
