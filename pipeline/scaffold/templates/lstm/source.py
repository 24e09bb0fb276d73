"""The data. After an edit, `dvc repro` loads it again, and trains again."""

import numpy as np

from stages.data import Arrays


def waves(samples: int = 2000, length: int = 24, noise: float = 0.1, seed: int = 0) -> Arrays:
    """Return noisy sine waves, (samples, length, 1), and the next value of each as its target, (samples, 1).

    Each wave has a frequency, an amplitude and a phase of its own. *noise* is the standard deviation of what
    is added to each value, also to the target.
    """
    generator = np.random.default_rng(seed)
    frequency = generator.uniform(0.2, 0.8, (samples, 1))  # radians per step
    amplitude = generator.uniform(0.5, 1.5, (samples, 1))
    phase = generator.uniform(0.0, 2 * np.pi, (samples, 1))
    values = amplitude * np.sin(frequency * np.arange(length + 1) + phase)
    values += generator.normal(0.0, noise, values.shape)
    values = values.astype(np.float32)
    return Arrays(values[:, :-1, None], values[:, -1:])
