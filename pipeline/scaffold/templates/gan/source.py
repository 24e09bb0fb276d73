"""The data. After an edit, `dvc repro` loads it again, and trains again."""

import numpy as np

from stages.data import Arrays


def ring(samples: int = 4000, modes: int = 8, seed: int = 0) -> Arrays:
    """Return points near *modes* places on a circle, (samples, 2), and the place of each as its target."""
    generator = np.random.default_rng(seed)
    mode = np.arange(samples) % modes
    angle = 2 * np.pi * mode / modes
    centers = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points = centers + generator.normal(0.0, 0.05, (samples, 2))
    return Arrays(points.astype(np.float32), mode.astype(np.int64))
