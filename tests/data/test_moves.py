"""Crops and flips of images together with their masks and boxes, compared with a direct computation."""

import numpy as np
import pytest

from stages.contracts.errors import BuilderError
from stages.data import ColorJitter, HorizontalFlip, Ragged, RandomCrop, RandomErasing, VerticalFlip
from stages.data.augmentation import SampleDraws, augment_leaves

COUNT, HEIGHT, WIDTH = 100, 9, 14
KINDS = {"inputs": "image", "targets.mask": "mask", "targets.boxes": "boxes"}
POSITIONS = np.arange(COUNT * HEIGHT * WIDTH, dtype=np.int32).reshape(COUNT, 1, HEIGHT, WIDTH)


def draw_boxes(count):
    """Return boxes of whole pixels, each at least one pixel high and wide."""
    draws = np.random.default_rng(count)
    left, top = draws.integers(0, WIDTH - 1, count % 5), draws.integers(0, HEIGHT - 1, count % 5)
    right, bottom = draws.integers(left + 1, WIDTH), draws.integers(top + 1, HEIGHT)
    return np.stack((left, top, right, bottom), axis=1).astype(np.float32)


BOXES = Ragged.of([draw_boxes(number) for number in range(COUNT)], (4,))
LEAVES = {
    "inputs": POSITIONS,
    "targets.mask": POSITIONS[:, 0] + 1,
    "targets.boxes": BOXES,
    "targets.labels": Ragged(np.arange(len(BOXES.values)), BOXES.ends),
}
MOVES = {
    "crop": RandomCrop(size=[6, 7], padding=2, mask_fill=5, fill=-1),
    "horizontal flip": HorizontalFlip(),
    "vertical flip": VerticalFlip(),
}


def change(config, leaves=LEAVES):
    return augment_leaves(config, leaves, KINDS, lambda: SampleDraws(7, range(COUNT)))


def box_of_pixels(is_inside):
    """Return left, top, right and bottom of the true pixels."""
    rows, columns = np.nonzero(is_inside)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


@pytest.mark.parametrize("config", MOVES.values(), ids=MOVES)
def test_mask_moves_with_its_image(config):
    moved = change(config)

    is_padding = moved["inputs"][:, 0] == -1
    assert np.array_equal(moved["targets.mask"][~is_padding], moved["inputs"][:, 0][~is_padding] + 1)
    assert (moved["targets.mask"][is_padding] == 5).all()
    assert not np.array_equal(moved["inputs"][:, :, :6, :7], POSITIONS[:, :, :6, :7])


@pytest.mark.parametrize("config", MOVES.values(), ids=MOVES)
def test_box_is_around_the_pixels_it_was_around(config):
    moved = change(config)

    boxes, labels = moved["targets.boxes"], moved["targets.labels"]
    expected, numbers = [], []
    for number in range(COUNT):
        for box, label in zip(BOXES[number].astype(int), LEAVES["targets.labels"][number], strict=True):
            left, top, right, bottom = box
            is_inside = np.isin(moved["inputs"][number, 0], POSITIONS[number, 0, top:bottom, left:right])
            if is_inside.any():
                expected.append(box_of_pixels(is_inside))
                numbers.append(label)
    assert boxes.values.tolist() == expected
    assert labels.values.tolist() == numbers
    assert boxes.ends.tolist() == labels.ends.tolist()


def test_crop_removes_boxes_outside_of_it():
    assert len(change(MOVES["crop"])["targets.boxes"].values) < len(BOXES.values)


@pytest.mark.parametrize("config", [RandomErasing(p=1), ColorJitter(brightness=0.5)], ids=["erase", "color"])
def test_color_changes_images_of_the_inputs_only(config):
    changed = change(config)

    assert not np.array_equal(changed["inputs"], POSITIONS)
    assert all(changed[name] is LEAVES[name] for name in LEAVES if name != "inputs")


def test_all_images_of_a_sample_move_alike():
    leaves = {"inputs.a": POSITIONS, "inputs.b": POSITIONS.repeat(3, axis=1)}
    kinds = dict.fromkeys(leaves, "image")

    moved = augment_leaves(RandomCrop(size=4), leaves, kinds, lambda: SampleDraws(7, range(COUNT)))

    assert np.array_equal(moved["inputs.b"], moved["inputs.a"].repeat(3, axis=1))


def test_images_of_two_sizes_are_an_error():
    leaves = {"inputs.a": POSITIONS, "inputs.b": POSITIONS[:, :, 1:]}

    with pytest.raises(BuilderError, match="found the sizes 8×14 and 9×14. Resize them"):
        augment_leaves(VerticalFlip(), leaves, dict.fromkeys(leaves, "image"), lambda: SampleDraws(7, [0]))
