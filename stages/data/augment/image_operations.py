"""The built-in augmentation of images: operations on a batch (B, C, H, W) of any dtype.

An operation returns a new array, and the result for an image depends on that image and its own draws only.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stages.contracts.errors import BuilderError
from stages.data.augment.augmentation_config import (
    BuiltIn,
    ColorJitter,
    HorizontalFlip,
    RandomCrop,
    RandomErasing,
    VerticalFlip,
)
from stages.data.augment.sample_draws import SampleDraws


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
        first_row, first_column = tops[row], lefts[row]
        erased[row, :, first_row : first_row + heights[row], first_column : first_column + widths[row]] = (
            config.value
        )
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
