"""Draw the images of three classes: PNG files in a folder for each class. An edit reruns the pipeline."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

FOLDER = Path("data/images")
CLASSES = ("circle", "square", "triangle")
IMAGES_PER_CLASS = 300
SIZE = 32
"""Height and width in pixels."""
SEED = 0


def draw_image(name: str, generator: np.random.Generator) -> Image.Image:
    """Return an image of the shape *name*, of random color, size and place, on a background with noise."""
    pixels = generator.integers(0, 100, (SIZE, SIZE, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    radius = int(generator.integers(5, 12))
    x, y = (int(each) for each in generator.integers(radius, SIZE - radius, 2))
    color = tuple(int(each) for each in generator.integers(100, 256, 3))
    box = (x - radius, y - radius, x + radius, y + radius)
    draw = ImageDraw.Draw(image)
    if name == "circle":
        draw.ellipse(box, fill=color)
    elif name == "square":
        draw.rectangle(box, fill=color)
    else:
        draw.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=color)
    return image


def make_images(folder: Path, count: int = IMAGES_PER_CLASS) -> None:
    """Write *count* images of each class below *folder*: the same ones each time, because of `SEED`."""
    generator = np.random.default_rng(SEED)
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            draw_image(name, generator).save(folder / name / f"{number:03}.png")


if __name__ == "__main__":
    make_images(FOLDER)
