"""Crops and flips of images, masks and boxes, compared with the transforms of torchvision.

torchvision does not import beside a PyTorch of another build, so the tests read stored hashes of its results;
with torchvision, they are computed again.
"""

import hashlib
import json

import numpy as np
import pytest
import torch

from stages.data import HorizontalFlip, Ragged, RandomCrop, VerticalFlip
from stages.data.augmentation import MOVES, SampleDraws, augment_leaves

COUNT, HEIGHT, WIDTH = 100, 24, 31
KINDS = {"inputs": "image", "targets.mask": "mask", "targets.boxes": "boxes"}
CONFIGS = {
    "crop": [RandomCrop(size=[16, 20], padding=4, fill=7, mask_fill=3)],
    "small crop": [RandomCrop(size=[5, 6])],
    "horizontal flip": [HorizontalFlip()],
    "vertical flip": [VerticalFlip(p=0.3)],
    "all": [RandomCrop(padding=6, mask_fill=1), HorizontalFlip(), VerticalFlip()],
}
HASHES_OF_TORCHVISION = {  # of 0.28.0
    "crop": "07b4a5a485486a75",
    "small crop": "5a41ff38596320e0",
    "horizontal flip": "b6e085249e808901",
    "vertical flip": "b61b345af38a3a45",
    "all": "cd2e9fc1edebb989",
}


def draw_samples():
    """Return images, masks, up to five boxes of whole pixels for each, and their labels."""
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (COUNT, 3, HEIGHT, WIDTH), dtype=np.uint8)
    masks = draws.integers(0, 4, (COUNT, HEIGHT, WIDTH), dtype=np.uint8)
    corners = draws.integers(0, [WIDTH - 1, HEIGHT - 1], (COUNT, 5, 2))
    ends = draws.integers(corners + 1, [WIDTH + 1, HEIGHT + 1])
    rows = np.concatenate((corners, ends), axis=2).astype(np.float32)
    boxes = Ragged.of([rows[number, : number % 6] for number in range(COUNT)], (4,))
    labels = Ragged(np.arange(len(boxes.values)), boxes.ends)
    return {
        "inputs": images,
        "targets.mask": masks,
        "targets.boxes": boxes,
        "targets.labels": labels,
    }


def move(configs):
    """Return for each sample its image, mask, boxes and labels after our operations."""
    leaves = draw_samples()
    for number, config in enumerate(configs):
        leaves = augment_leaves(
            config, leaves, KINDS, lambda number=number: SampleDraws(number, range(COUNT))
        )
    return [tuple(leaf[row] for leaf in leaves.values()) for row in range(COUNT)]


def move_with_torchvision(configs):
    """Return the same by the transforms of torchvision, at the same places."""
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    leaves = draw_samples()
    moved = []
    for row in range(COUNT):
        image, mask, boxes, labels = (torch.as_tensor(leaf[row]) for leaf in leaves.values())
        frame = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(HEIGHT, WIDTH))
        moved.append({"image": tv_tensors.Image(image), "mask": tv_tensors.Mask(mask), "boxes": frame})
        moved[-1]["labels"] = labels
    for number, config in enumerate(configs):
        images = np.stack([sample["image"].numpy() for sample in moved])
        ours = MOVES[type(config)](images, SampleDraws(number, range(COUNT)), config)
        for row, sample in enumerate(moved):
            for name in ("image", "mask", "boxes"):
                sample[name] = _apply(v2.functional, sample[name], ours, row, is_mask=name == "mask")
        moved = [
            sample | v2.SanitizeBoundingBoxes()({"boxes": sample["boxes"], "labels": sample["labels"]})
            for sample in moved
        ]
    return [tuple(leaf.numpy() for leaf in sample.values()) for sample in moved]


def _apply(functional, leaf, ours, row, *, is_mask):
    if hasattr(ours, "tops"):
        fill = ours.config.mask_fill if is_mask else ours.config.fill
        padded = functional.pad(leaf, [ours.config.padding] * 4, fill=fill)
        return functional.crop(padded, int(ours.tops[row]), int(ours.lefts[row]), *ours.size)
    flip = functional.horizontal_flip if ours.axis == -1 else functional.vertical_flip
    return flip(leaf) if ours.is_flipped[row] else leaf


def hash_samples(samples):
    content = hashlib.sha256()
    for sample in samples:
        for leaf in sample:
            content.update(json.dumps((np.asarray(leaf) + 0).tolist()).encode())  # no -0.0
    return content.hexdigest()[:16]


@pytest.mark.parametrize("name", CONFIGS)
def test_images_masks_and_boxes_move_as_in_torchvision(name):
    assert hash_samples(move(CONFIGS[name])) == HASHES_OF_TORCHVISION[name]


@pytest.mark.parametrize("name", CONFIGS)
def test_stored_hashes_are_those_of_torchvision(name):
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision: {error}")

    assert hash_samples(move_with_torchvision(CONFIGS[name])) == HASHES_OF_TORCHVISION[name]
