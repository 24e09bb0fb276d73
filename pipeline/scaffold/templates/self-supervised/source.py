"""The data. After an edit, `dvc repro` loads it again, and trains again."""

import numpy as np
from sklearn.datasets import load_digits

from stages.data import Arrays


def images() -> Arrays:
    """Return the 1,797 digits of scikit-learn without their classes, (1797, 1, 8, 8), integers of 0 to 16."""
    return Arrays(load_digits().images[:, None].astype(np.uint8))
