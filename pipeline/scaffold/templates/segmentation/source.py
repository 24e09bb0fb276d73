"""The data. After an edit, `dvc repro` loads it again, and trains again."""

import numpy as np

from stages.data import Arrays

CLASSES = ("background", "circle", "square")


def shapes(samples: int = 600, size: int = 32, seed: int = 0) -> Arrays:
    """Return images (samples, 3, size, size), and their masks (samples, size, size), a class for each pixel.

    Each image has a circle and a square of random colors, sizes and places, on noise. One may cover the
    other.
    """
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 120, (samples, 3, size, size), dtype=np.uint8)
    masks = np.zeros((samples, size, size), np.uint8)
    rows, columns = np.mgrid[:size, :size]
    for image, mask in zip(images, masks, strict=True):
        for kind in generator.permutation((1, 2)):
            radius = generator.integers(size // 8, size // 4)
            y, x = generator.integers(radius, size - radius, 2)
            distances = abs(rows - y), abs(columns - x)
            distance = np.hypot(*distances) if kind == 1 else np.maximum(*distances)
            image[:, distance <= radius] = generator.integers(100, 256, (3, 1))
            mask[distance <= radius] = kind
    return Arrays(images, masks, facts={"class_names": CLASSES})
