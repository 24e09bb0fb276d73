"""Training: the builder of a learner, the training loop, checkpointing, evaluation and the summary."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
