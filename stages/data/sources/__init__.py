"""Sources of samples: arrays, tables, texts, folders of images, torchvision and Hugging Face."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
