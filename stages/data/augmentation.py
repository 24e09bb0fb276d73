"""Augmentation: random changes of the inputs of a split, before its batches are combined and normalized.

A built-in operation takes a batch of images (B, C, H, W) of any dtype and returns a new array; the result for
an image depends on that image and its own draws only. The draws of a sample are a pure function of a seed and
its index.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stages.contracts import plugins
from stages.contracts.config import Use, arguments_of
from stages.contracts.errors import BuilderError, PluginError
from stages.data.config import (
    AUGMENTATIONS,
    BuiltIn,
    ColorJitter,
    HorizontalFlip,
    RandomCrop,
    RandomErasing,
    VerticalFlip,
)
from stages.data.datasets import Samples, TensorDataset
from stages.devices.rng import derive_seed, seed_host_generators

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MAX_UINT64 = 2**64 - 1


Augmentation = BuiltIn | Callable[[Any], Any]
"""A built-in kind, or a transform that is called with the input of each sample and returns another one."""


class SampleDraws:
    """Uniform random numbers of *B* samples, drawn for all of them with one call.

    The numbers of a sample depend on *seed*, on its index and on the number of earlier draws, and not on the
    batch it is in. They are those of SplitMix64 (Steele, Lea and Flood, 2014), keyed by seed and index.
    """

    def __init__(self, seed: int, indices: Sequence[int] | Tensor) -> None:
        self._states = _mix(_mix(np.asarray(indices, np.uint64)) ^ np.uint64(seed))
        self._steps = 0

    def seeds(self) -> list[int]:
        """Return one seed of 63 bits for each sample."""
        seeds: list[int] = (self._next_bits() >> np.uint64(1)).tolist()
        return seeds

    def uniform(self, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        """Return one number from *low* to *high* for each sample, (B,), float64."""
        return low + (high - low) * ((self._next_bits() >> np.uint64(11)) * 2.0**-53)

    def integers(self, below: int | np.ndarray) -> np.ndarray:
        """Return one integer from 0 to *below* - 1 for each sample, (B,), int64; *below* is at least 1."""
        limits = np.asarray(below, np.int64)
        return np.minimum((self.uniform() * limits).astype(np.int64), limits - 1)

    def _next_bits(self) -> npt.NDArray[np.uint64]:
        """Return 64 random bits for each sample, (B,)."""
        self._steps += 1
        return _mix(self._states + np.uint64(self._steps * GOLDEN_GAMMA & MAX_UINT64))


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the output function of SplitMix64 of each value, uint64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def augment_images(config: BuiltIn, images: np.ndarray, draws: SampleDraws) -> np.ndarray:
    """Return *images* (B, C, H, W) after the operation that *config* configures.

    Raises `BuilderError` if they are not images, or smaller than a crop.
    """
    if images.ndim != 4:
        raise BuilderError(
            f"augmentation {config.kind!r} takes images (channels, height, width); found inputs of shape "
            f"{images.shape[1:]}. Remove it from fit.augment"
        )
    return OPERATIONS[type(config)](images, draws, config)


def random_crop(images: np.ndarray, draws: SampleDraws, config: RandomCrop) -> np.ndarray:
    """Return a part of each padded image, (B, C, *config.size).

    Raises `BuilderError` if the padded images are smaller.
    """
    _check_value(config.kind, config.fill, images)
    padded = _pad(images, config.padding, config.fill)
    height, width = config.size or images.shape[2:]
    rows, columns = padded.shape[2] - height, padded.shape[3] - width
    if min(rows, columns) < 0:
        raise BuilderError(
            f"augmentation 'random_crop' cannot cut {height}×{width} pixels out of images of "
            f"{images.shape[2]}×{images.shape[3]} with padding {config.padding}. Set a smaller size or more "
            "padding"
        )
    tops, lefts = draws.integers(rows + 1).tolist(), draws.integers(columns + 1).tolist()
    cropped = np.empty((*images.shape[:2], height, width), images.dtype)
    for image, source, first_row, first_column in zip(cropped, padded, tops, lefts, strict=True):
        image[:] = source[:, first_row : first_row + height, first_column : first_column + width]
    return cropped


def horizontal_flip(images: np.ndarray, draws: SampleDraws, config: HorizontalFlip) -> np.ndarray:
    """Return *images*, some of them flipped from left to right."""
    return _flip(images, draws.uniform() < config.p, axis=3)


def vertical_flip(images: np.ndarray, draws: SampleDraws, config: VerticalFlip) -> np.ndarray:
    """Return *images*, some of them flipped upside down."""
    return _flip(images, draws.uniform() < config.p, axis=2)


def random_erasing(images: np.ndarray, draws: SampleDraws, config: RandomErasing) -> np.ndarray:
    """Return *images*, some of them with a rectangle of one value."""
    _check_value(config.kind, config.value, images)
    is_erased = draws.uniform() < config.p
    areas = images.shape[2] * images.shape[3] * draws.uniform(*config.scale)
    ratios = np.exp(draws.uniform(*np.log(config.ratio)))
    heights = _round_to_size(np.sqrt(areas / ratios), images.shape[2])
    widths = _round_to_size(np.sqrt(areas * ratios), images.shape[3])
    tops = draws.integers(images.shape[2] - heights + 1)
    lefts = draws.integers(images.shape[3] - widths + 1)
    erased = images.copy()
    for row in np.flatnonzero(is_erased):
        vertical = slice(tops[row], tops[row] + heights[row])
        horizontal = slice(lefts[row], lefts[row] + widths[row])
        erased[row, :, vertical, horizontal] = config.value
    return erased


def color_jitter(images: np.ndarray, draws: SampleDraws, config: ColorJitter) -> np.ndarray:
    """Return *images* with another brightness and contrast."""
    changed: np.ndarray[Any, Any] = images.astype(np.float64 if images.dtype.itemsize > 4 else np.float32)
    changed *= _factors(draws, config.brightness, changed.dtype)
    if config.contrast:
        means = np.array([image.mean(dtype=np.float64) for image in changed])  # a batched mean may round
        centers = means.astype(changed.dtype)[:, None, None, None]  # each image in another order
        changed -= centers
        changed *= _factors(draws, config.contrast, changed.dtype)
        changed += centers
    if images.dtype.kind in "iu":
        limits = np.iinfo(images.dtype)
        np.clip(np.rint(changed, out=changed), limits.min, limits.max, out=changed)
    return changed.astype(images.dtype, copy=False)


Operation = Callable[[np.ndarray, SampleDraws, Any], np.ndarray]
OPERATIONS: Mapping[type, Operation] = {
    RandomCrop: random_crop,
    HorizontalFlip: horizontal_flip,
    VerticalFlip: vertical_flip,
    RandomErasing: random_erasing,
    ColorJitter: color_jitter,
}


def _pad(images: np.ndarray, padding: int, fill: float) -> np.ndarray:
    if not padding:
        return images
    batch, channels, height, width = images.shape
    padded = np.full((batch, channels, height + 2 * padding, width + 2 * padding), fill, images.dtype)
    padded[:, :, padding : padding + height, padding : padding + width] = images
    return padded


def _check_value(kind: str, value: float, images: np.ndarray) -> None:
    """Raise `BuilderError` if integer *images* cannot contain *value*."""
    if images.dtype.kind not in "iu":
        return
    limits = np.iinfo(images.dtype)
    if not (limits.min <= value <= limits.max and float(value).is_integer()):
        raise BuilderError(
            f"augmentation {kind!r} fills with {value}, which images of {images.dtype} cannot contain. Set "
            f"an integer from {limits.min} to {limits.max}"
        )


def _flip(images: np.ndarray, is_flipped: np.ndarray, axis: int) -> np.ndarray:
    flipped = images.copy()
    flipped[is_flipped] = np.flip(images[is_flipped], axis)
    return flipped


def _round_to_size(lengths: np.ndarray, size: int) -> np.ndarray:
    return np.asarray(np.clip(np.rint(lengths), 1, size), np.int64)


def _factors(draws: SampleDraws, strength: float, dtype: Any) -> np.ndarray:
    """Return a factor for each image, (B, 1, 1, 1)."""
    factors: np.ndarray = draws.uniform(max(0.0, 1 - strength), 1 + strength).astype(dtype)
    return factors[:, None, None, None]


class Augmenter:
    """The augmentation of a split: a pure function of (seed, epoch, index) for each sample.

    Built-in kinds change all images of a batch together. Before a transform is called with an input, the
    generators of torch, Python and NumPy are seeded for that sample.
    """

    def __init__(self, augmentations: Sequence[Augmentation], seed: int) -> None:
        self._augmentations = [(f"augment-{n}", augmentation) for n, augmentation in enumerate(augmentations)]
        self._seed = seed

    @property
    def runs_user_code(self) -> bool:
        """True if a transform may draw from the global generators, whose state is then not restored."""
        return not all(isinstance(augmentation, BuiltIn) for _, augmentation in self._augmentations)

    def check(self, dataset: TensorDataset) -> None:
        """Raise `BuilderError` if built-in kinds cannot change the first input; call no transform of a user.

        In a worker process the same error would be reported with a traceback.
        """
        if len(dataset) and not self.runs_user_code:
            self.augment(dataset.__getitems__([0]), 1, [0])

    def augment(self, items: Any, epoch: int, indices: Sequence[int] | Tensor) -> Any:
        """Return *items*, the samples at *indices*, with new inputs; other parts of a sample are unchanged.

        Raises `BuilderError` if a built-in kind cannot change an input, such as one that is not an image.
        """
        indices = torch.as_tensor(indices)
        if isinstance(items, Samples):
            inputs = _stack(self._change(items.inputs, epoch, indices))
            if isinstance(inputs, Tensor):
                return Samples(inputs, items.targets)
        else:
            inputs = self._change([item[0] for item in items], epoch, indices)
        return [(changed, *item[1:]) for changed, item in zip(inputs, items, strict=True)]

    def _change(self, inputs: Any, epoch: int, indices: Tensor) -> Any:
        for name, augmentation in self._augmentations:
            draws = partial(SampleDraws, derive_seed(self._seed, name, epoch))
            if isinstance(augmentation, BuiltIn):
                inputs = _change_images(augmentation, inputs, draws, indices)
            else:
                inputs = _call_for_each(augmentation, inputs, draws(indices).seeds())
        return inputs


def _call_for_each(transform: Callable[[Any], Any], inputs: Any, seeds: Sequence[int]) -> list[Any]:
    changed = []
    for value, seed in zip(inputs, seeds, strict=True):
        seed_host_generators(seed)
        changed.append(transform(value))
    return changed


def _change_images(
    config: BuiltIn, inputs: Any, make_draws: Callable[[Tensor], SampleDraws], indices: Tensor
) -> Any:
    """Return *inputs* after a built-in kind: together if all have the same shape, else one by one."""
    inputs = _stack(inputs)
    if isinstance(inputs, Tensor):
        return torch.from_numpy(augment_images(config, inputs.numpy(), make_draws(indices)))
    return [
        torch.from_numpy(augment_images(config, image[None].numpy(), make_draws(index[None])))[0]
        for image, index in zip(inputs, indices, strict=True)
    ]


def _stack(inputs: Any) -> Any:
    """Return *inputs* as one tensor if they are tensors of one shape and dtype, else unchanged."""
    if isinstance(inputs, Tensor) or not all(isinstance(item, Tensor) for item in inputs):
        return inputs
    return torch.stack(inputs) if len({(item.shape, item.dtype) for item in inputs}) == 1 else inputs


def build_augmentation(config: BuiltIn | Use) -> Augmentation:
    """Return the augmentation that *config* names: a built-in kind, or an instance of a class or a function.

    A class is built with the arguments in *config*; a function receives them at each call, after the input.
    Raises `PluginError` if it cannot be built.
    """
    if not isinstance(config, Use):
        return config
    augmentation = plugins.find("augmentation", config.kind, AUGMENTATIONS)
    arguments = arguments_of(config)
    if isinstance(augmentation, type):
        augmentation = plugins.build("augmentation", config.kind, augmentation, arguments)
    elif arguments:
        augmentation = partial(augmentation, **arguments)
    try:
        return check_augmentation(augmentation)
    except BuilderError as error:
        raise PluginError(f"augmentation {config.kind!r}: {error}") from None


def check_augmentation(augmentation: Any) -> Augmentation:
    """Return *augmentation*. Raises `BuilderError` if it cannot be called with an input."""
    if isinstance(augmentation, BuiltIn) or (callable(augmentation) and not isinstance(augmentation, type)):
        return augmentation
    name = augmentation.__name__ if isinstance(augmentation, type) else type(augmentation).__name__
    raise BuilderError(
        f"an augmentation must be a built-in kind, a function of an input, or an object that can be called "
        f"with one; found {name}. Pass an instance of a class, not the class"
    )
