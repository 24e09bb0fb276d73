"""Quick tests of the images and the model, to run before a long training."""

from pathlib import Path

import torch

from make_images import CLASSES, SIZE, make_images
from model import ImageNet
from stages.data.sources.image_folder import image_folder


def test_images_are_the_same_each_time(tmp_path: Path) -> None:
    """The seed decides every pixel."""
    make_images(tmp_path / "a", count=2)
    make_images(tmp_path / "b", count=2)

    images = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").glob("*/*.png"))
    assert len(images) == 2 * len(CLASSES)
    assert all(
        (tmp_path / "a" / each).read_bytes() == (tmp_path / "b" / each).read_bytes() for each in images
    )


def test_folders_are_the_classes(tmp_path: Path) -> None:
    """The source `image_folder` reads three channels, and a class for each folder."""
    make_images(tmp_path, count=2)

    arrays = image_folder(str(tmp_path))

    assert arrays.inputs.shape == (2 * len(CLASSES), 3, SIZE, SIZE)
    assert arrays.facts["class_names"] == CLASSES


def test_model_takes_images_of_any_size() -> None:
    """A logit for each class, whatever the height and the width."""
    model = ImageNet((3, SIZE, SIZE), num_classes=len(CLASSES))

    for height, width in ((SIZE, SIZE), (8, 50)):
        assert model(torch.rand(4, 3, height, width)).shape == (4, len(CLASSES))
