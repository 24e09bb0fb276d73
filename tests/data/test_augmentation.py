"""Augmentation: random changes of inputs, functions of the seed, the epoch and the index of a sample."""

import random

import numpy as np
import pytest
import torch

from stages.contracts.config import Use
from stages.contracts.errors import BuilderError, PluginError
from stages.data import (
    ColorJitter,
    DataLoaderBuilder,
    HorizontalFlip,
    MapperDataset,
    NormalizeBatcher,
    RandomCrop,
    RandomErasing,
    TensorDataset,
    VerticalFlip,
    build_augmentation,
)
from stages.data.augmentation import DEFAULT_KINDS, SampleDraws, augment_leaves
from stages.params.fit_params import FitConfig

COUNT = 64
IMAGES = torch.arange(1, 1 + COUNT * 3 * 6 * 8).remainder(251).to(torch.uint8).reshape(COUNT, 3, 6, 8)
DATASET = TensorDataset(IMAGES, torch.arange(COUNT))
ALL_KINDS = [
    RandomCrop(padding=2),
    HorizontalFlip(),
    VerticalFlip(),
    RandomErasing(value=7),
    ColorJitter(brightness=0.4, contrast=0.4),
]


def noise(image):
    """Add noise of each generator that a transform may use."""
    drawn = torch.rand(image.shape) + random.gauss(0, 1) + np.random.rand()
    return image.float() + drawn


class Noise:
    """A transform with an argument."""

    def __init__(self, strength):
        self.strength = strength

    def __call__(self, image):
        return image + self.strength * torch.rand(image.shape)


LISTS = {"built in": ALL_KINDS, "own": [noise], "both": [HorizontalFlip(), noise, RandomCrop(padding=1)]}


def build(augmentations, dataset=DATASET, workers=0, batch_size=5, seed=7):
    made = DataLoaderBuilder(NormalizeBatcher()).batch_size(batch_size).shuffle(seed).num_workers(workers)
    return made.augment(augmentations).build(dataset)


def inputs_by_index(loader, epoch, position=0):
    """Return the bytes of each input by the index of its sample."""
    loader.set_epoch(epoch)
    loader.set_position(position)
    pairs = (pair for batch in loader for pair in zip(*batch, strict=True))
    return {int(index): image.numpy().tobytes() for image, index in pairs}


def apply(config, images, epoch=1):
    draws = SampleDraws(epoch, range(len(images)))
    changed = augment_leaves(config, {"inputs": images.numpy()}, DEFAULT_KINDS, lambda: draws)["inputs"]
    return torch.from_numpy(changed)


@pytest.mark.parametrize("augmentations", LISTS.values(), ids=LISTS)
def test_augmented_inputs_depend_on_seed_epoch_and_index_only(augmentations):
    whole = inputs_by_index(build(augmentations), 2)
    helped = build(augmentations, workers=2)

    for loader in (build(augmentations), build(augmentations, workers=1), helped, helped):
        assert inputs_by_index(loader, 2) == whole
    assert inputs_by_index(build(augmentations, batch_size=64), 2) == whole
    assert inputs_by_index(build(augmentations, dataset=MapperDataset(DATASET, tuple)), 2) == whole
    rest = inputs_by_index(build(augmentations, workers=1), 2, position=7)
    assert rest == {index: whole[index] for index in rest}
    assert len(rest) == COUNT - 7 * 5
    assert inputs_by_index(helped, 3) != whole != inputs_by_index(build(augmentations, seed=8), 2)


def test_images_of_different_sizes_are_augmented_one_by_one():
    sizes = [(8, 6) if index % 2 else (9, 7) for index in range(COUNT)]

    def resize(sample):
        height, width = sizes[int(sample[1])]
        return torch.full((1, height, width), int(sample[1]), dtype=torch.uint8), sample[1]

    loader = build([RandomCrop(size=(4, 5)), HorizontalFlip()], MapperDataset(DATASET, resize), batch_size=8)

    assert {tuple(batch.inputs.shape) for batch in loader} == {(8, 1, 4, 5)}


def test_neither_the_data_nor_the_global_generators_are_changed():
    before = IMAGES.clone(), torch.get_rng_state(), random.getstate(), str(np.random.get_state())

    list(build([*ALL_KINDS, noise]))

    assert torch.equal(IMAGES, before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
    assert (random.getstate(), str(np.random.get_state())) == before[2:]


def test_crop_is_a_window_of_the_padded_image():
    padded = torch.nn.functional.pad(IMAGES, (2, 2, 2, 2), value=9)
    windows = [padded[:, :, top : top + 4, left : left + 5] for top in range(7) for left in range(8)]

    cropped = apply(RandomCrop(padding=2, size=(4, 5), fill=9), IMAGES)

    places = [
        [number for number, window in enumerate(windows) if torch.equal(window[row], cropped[row])]
        for row in range(COUNT)
    ]
    assert all(places)
    assert len({place[0] for place in places}) > COUNT // 3


@pytest.mark.parametrize(("kind", "axis"), [(HorizontalFlip, 3), (VerticalFlip, 2)])
def test_flip_changes_the_given_share_of_the_images(kind, axis):
    flipped = apply(kind(), IMAGES)

    is_flipped = [torch.equal(one, other) for one, other in zip(flipped, IMAGES.flip(axis), strict=True)]
    is_same = [torch.equal(one, other) for one, other in zip(flipped, IMAGES, strict=True)]
    assert [not each for each in is_flipped] == is_same
    assert COUNT // 4 < sum(is_flipped) < 3 * COUNT // 4
    assert torch.equal(apply(kind(p=1), IMAGES), IMAGES.flip(axis))
    assert torch.equal(apply(kind(p=0), IMAGES), IMAGES)


def test_erased_rectangle_has_the_given_area_and_value():
    images = torch.ones(200, 2, 40, 50)

    erased = apply(RandomErasing(p=1, scale=(0.1, 0.2), ratio=(0.5, 2), value=5), images)

    for image in erased:
        rows, columns = (image[0] == 5).any(1), (image[0] == 5).any(0)
        assert torch.equal(image, torch.where(rows[:, None] & columns, 5.0, 1.0).expand(2, -1, -1))
        height, width = int(rows.sum()), int(columns.sum())
        assert 0.1 - 0.02 < height * width / 2000 < 0.2 + 0.02
        assert 0.45 < width / height < 2.2
    assert len({str(image) for image in (erased == 5).nonzero()[:, 0].bincount()}) > 20
    assert torch.equal(apply(RandomErasing(p=0), images), images)


def test_jitter_scales_values_and_their_distances_from_the_mean():
    images = torch.rand(COUNT, 3, 6, 8)

    bright = apply(ColorJitter(brightness=0.5), images) / images
    contrast = apply(ColorJitter(contrast=0.5), images)

    factors = bright.flatten(1)
    assert torch.allclose(factors, factors[:, :1].expand_as(factors), rtol=1e-5)
    assert 0.5 <= factors.min() < 0.6
    assert 1.4 < factors.max() <= 1.5
    assert torch.allclose(contrast.flatten(1).mean(1), images.flatten(1).mean(1), atol=1e-6)
    shares = contrast.flatten(1).std(1) / images.flatten(1).std(1)
    assert 0.5 <= shares.min() < 0.6
    assert 1.4 < shares.max() <= 1.5


def test_jitter_keeps_integers_in_the_range_of_their_dtype():
    images = torch.tensor([0, 100, 200, 255], dtype=torch.uint8).reshape(1, 1, 2, 2).repeat(200, 1, 1, 1)

    changed = apply(ColorJitter(brightness=0.9), images)

    assert changed.dtype == torch.uint8
    assert (changed[:, 0, 0, 0] == 0).all()
    assert int(changed[:, 0, 1, 1].max()) == 255
    assert torch.equal(apply(ColorJitter(), images), images)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.uint32, torch.int64])
def test_jitter_does_not_wrap_large_integers_around(dtype):
    """They stay below the largest integer of the dtype, and those that float64 has keep all digits."""
    largest = torch.iinfo(dtype).max
    images, exact = (
        torch.full((50, 1, 2, 2), value, dtype=dtype) for value in (largest, 1 + largest // 2**12)
    )

    bright = apply(ColorJitter(brightness=0.5), images).numpy()

    assert bright.min() >= largest // 2
    assert bright.max() >= largest * (1 - 1e-15)
    assert torch.equal(apply(ColorJitter(), exact), exact)


def test_draws_are_uniform_and_independent_of_each_other():
    draws = SampleDraws(3, range(100_000))

    first, second = draws.uniform(-1, 1), draws.uniform(-1, 1)

    assert abs(first.mean()) < 0.01
    assert first.std() == pytest.approx(3**-0.5, rel=0.01)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.01
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.01
    assert np.bincount(draws.integers(5)).tolist() == pytest.approx([20_000] * 5, rel=0.03)


@pytest.mark.parametrize(
    ("augmentation", "inputs", "message"),
    [
        (HorizontalFlip(), torch.zeros(4, 5), "takes images .* found inputs of shape \\(5,\\)"),
        (RandomCrop(size=9, padding=1), torch.zeros(4, 1, 6, 8), "cannot cut 9×9 pixels .* of 6×8 with"),
        (RandomCrop(padding=1, fill=-1), IMAGES, "fills with -1.0, which images of uint8 cannot contain"),
        (RandomErasing(value=0.5), IMAGES, "fills with 0.5, .* Set an integer from 0 to 255"),
    ],
)
def test_inputs_that_an_augmentation_cannot_change_are_reported(augmentation, inputs, message):
    """If they are in memory, before the first batch."""
    dataset = TensorDataset(inputs, torch.zeros(len(inputs)))
    with pytest.raises(BuilderError, match=message):
        build([augmentation], dataset)
    with pytest.raises(BuilderError, match=message):
        next(iter(build([augmentation], MapperDataset(dataset, tuple))))


def test_part_that_cannot_be_called_is_refused():
    with pytest.raises(BuilderError, match="found Noise. Pass an instance"):
        build([Noise])
    with pytest.raises(PluginError, match="'builtins:NotImplemented': an augmentation must be"):
        build_augmentation(Use(kind="builtins:NotImplemented"))


def test_augmentation_is_built_from_its_import_path():
    made = build_augmentation(Use(kind=f"{__name__}:Noise", strength=0.5))

    assert made.strength == 0.5
    assert build_augmentation(Use(kind="builtins:round", ndigits=1))(0.123) == 0.1
    with pytest.raises(PluginError, match="'torchvision_v3:Crop' cannot be imported"):
        build_augmentation(Use(kind="torchvision_v3:Crop"))


def test_augmented_data_is_not_resident_on_an_accelerator(caplog):
    made = DataLoaderBuilder(NormalizeBatcher()).batch_size(COUNT).augment(ALL_KINDS)
    loader = made.resident(True).set_device("meta").build(DATASET)

    (batch,) = loader

    assert (batch.inputs.device.type, batch.inputs.dtype) == ("meta", torch.float32)
    assert "without augmentation" in caplog.text


def test_kind_without_arguments_is_written_as_its_name():
    config = FitConfig(augment=["horizontal_flip", "my_lab:blur", {"kind": "random_crop", "size": 5}])

    assert config.augment == (HorizontalFlip(), Use(kind="my_lab:blur"), RandomCrop(size=(5, 5)))
