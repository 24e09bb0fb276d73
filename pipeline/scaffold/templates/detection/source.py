"""The data. After an edit, `dvc repro` loads it again, and trains again."""

import numpy as np

from stages.data import Arrays, Ragged

CLASSES = ("circle", "square")


def shapes(samples: int = 600, size: int = 48, seed: int = 0) -> Arrays:
    """Return images (samples, 3, size, size) with one to three shapes, and the box and class of each shape.

    A box is left, top, right and bottom in pixels. The shapes of an image do not touch.
    """
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 120, (samples, 3, size, size), dtype=np.uint8)
    rows, columns = np.mgrid[:size, :size]
    boxes, labels = [], []
    for image in images:
        corners = generator.permutation([(y, x) for y in (0, size // 2) for x in (0, size // 2)])
        chosen = corners[: generator.integers(1, 4)]
        kinds = generator.integers(0, 2, len(chosen))
        found = []
        for kind, (top, left) in zip(kinds, chosen, strict=True):  # one in a quarter of the image
            radius = generator.integers(size // 12, size // 5)
            y, x = generator.integers(radius, size // 2 - radius, 2)
            y, x = top + y, left + x
            distances = abs(rows - y), abs(columns - x)
            distance = np.maximum(*distances) if kind else np.hypot(*distances)
            image[:, distance <= radius] = generator.integers(100, 256, (3, 1))
            found.append((x - radius, y - radius, x + radius + 1, y + radius + 1))
        boxes.append(np.array(found, np.float32))
        labels.append(kinds)
    targets = {"boxes": Ragged.of(boxes), "labels": Ragged.of(labels)}
    return Arrays(images, targets, facts={"class_names": CLASSES})
