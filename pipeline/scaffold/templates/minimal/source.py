"""The data. After an edit, `dvc repro` loads it again, and runs the stages that depend on it."""

import numpy as np

from stages.data import Arrays


def spirals(samples: int = 900, seed: int = 0) -> Arrays:
    """Return points on three arms of a spiral: inputs (samples, 2), and the arm of each as its target."""
    generator = np.random.default_rng(seed)
    arm = np.arange(samples) % 3
    radius = generator.uniform(0.1, 1.0, samples)
    angle = 2.1 * arm + 3.0 * radius + generator.normal(0.0, 0.1, samples)
    points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return Arrays(points.astype(np.float32), arm.astype(np.int64))
