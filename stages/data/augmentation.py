"""Augmentation: random changes of the samples of a split, before its batches are combined and normalized.

A built-in operation takes a batch of images (B, C, H, W) of any dtype and returns a new array; the result for
an image depends on that image and its own draws only. The draws of a sample are a pure function of a seed and
its index. A crop and a flip are an object that moves the masks and boxes of these images too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stages.contracts import plugins
from stages.contracts.config import Use
from stages.contracts.errors import BuilderError
from stages.data.config import (
    AUGMENTATIONS,
    BuiltIn,
    ColorJitter,
    HorizontalFlip,
    RandomCrop,
    RandomErasing,
    VerticalFlip,
)
from stages.data.datasets import Samples, TensorDataset, stack, to_tensor
from stages.data.trees import Ragged, Views, flatten, is_input, take, unflatten
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


Leaves = dict[str, Any]
"""The leaves of a batch of samples by their names: arrays, or `Ragged`."""
DEFAULT_KINDS = {"inputs": "image"}


def augment_leaves(
    config: BuiltIn, leaves: Leaves, kinds: Mapping[str, str], make_draws: Callable[[], SampleDraws]
) -> Leaves:
    """Return *leaves* after the operation that *config* configures, with the same draws for each of them.

    Crops and flips move images, masks and boxes; other operations change the images of the inputs only.
    Raises `BuilderError` if there is no image, or one is smaller than a crop.
    """
    names = [name for name in leaves if kinds.get(name) == "image"]
    for name in names or list(leaves)[:1]:
        if leaves[name].ndim != 4 or not names:
            raise BuilderError(
                f"augmentation {config.kind!r} takes images (channels, height, width); found inputs of shape "
                f"{leaves[name].shape[1:]}. Remove it from fit.augment"
            )
    if type(config) in MOVES:
        _check_sizes(config, [leaves[name] for name in names])
        return _move_leaves(MOVES[type(config)](leaves[names[0]], make_draws(), config), leaves, kinds)
    operation = OPERATIONS[type(config)]
    inputs = [name for name in names if is_input(name)]
    return leaves | {name: operation(leaves[name], make_draws(), config) for name in inputs}


def _check_sizes(config: BuiltIn, images: Sequence[np.ndarray]) -> None:
    sizes = sorted({image.shape[2:] for image in images})
    if len(sizes) > 1:
        raise BuilderError(
            f"augmentation {config.kind!r} moves all images of a sample alike; found the sizes "
            f"{' and '.join(f'{height}×{width}' for height, width in sizes)}. Resize them in the source"
        )


def _move_leaves(move: "Crop | Flip", leaves: Leaves, kinds: Mapping[str, str]) -> Leaves:
    """Return *leaves* after a move. Boxes without an area are removed, and the rows beside them."""
    moved = dict(leaves)
    for name, leaf in leaves.items():
        kind = kinds.get(name)
        if kind in ("image", "mask"):
            moved[name] = move.move_pixels(leaf, is_mask=kind == "mask")
        elif kind == "boxes":
            rows = np.repeat(np.arange(len(leaf)), leaf.lengths)
            boxes = move.move_boxes(np.asarray(leaf.values), rows)
            is_kept = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
            moved[name] = replace(leaf, values=boxes)
            for beside in _list_beside(name, leaves):
                moved[beside] = moved[beside].keep(is_kept)
    return moved


def _list_beside(name: str, leaves: Leaves) -> list[str]:
    """Return the names of the ragged leaves with the rows of the boxes *name*, which is one of them."""
    parent, ends = name.rpartition(".")[0], leaves[name].ends
    return [
        other
        for other, leaf in leaves.items()
        if isinstance(leaf, Ragged) and other.rpartition(".")[0] == parent and np.array_equal(leaf.ends, ends)
    ]


@dataclass(frozen=True)
class Crop:
    """A part of each padded image, of the same size for all."""

    tops: np.ndarray
    lefts: np.ndarray
    size: tuple[int, int]
    config: RandomCrop

    def move_pixels(self, pixels: np.ndarray, *, is_mask: bool) -> np.ndarray:
        """Return the part of *pixels*; masks are padded with ``mask_fill``."""
        fill = self.config.mask_fill if is_mask else self.config.fill
        _check_value(self.config.kind, fill, pixels)
        padded = _pad(pixels, self.config.padding, fill)
        cropped = np.empty((*pixels.shape[:-2], *self.size), pixels.dtype)
        height, width = self.size
        corners = zip(self.tops.tolist(), self.lefts.tolist(), strict=True)
        for image, source, (top, left) in zip(cropped, padded, corners, strict=True):
            image[:] = source[..., top : top + height, left : left + width]
        return cropped

    def move_boxes(self, boxes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the part of each box that is within the part of its image."""
        corners = np.stack((self.lefts, self.tops), axis=1) - self.config.padding
        shifted = boxes - np.tile(corners, 2)[rows].astype(boxes.dtype)
        return np.asarray(np.clip(shifted, 0, np.array([*self.size[::-1]] * 2, boxes.dtype)))


@dataclass(frozen=True)
class Flip:
    """A reflection of some images."""

    is_flipped: np.ndarray
    axis: int
    """-1 from left to right, -2 upside down."""
    length: int
    """The number of pixels along the axis."""

    def move_pixels(self, pixels: np.ndarray, *, is_mask: bool) -> np.ndarray:
        """Return *pixels*, some of them reflected."""
        del is_mask
        flipped = pixels.copy()
        flipped[self.is_flipped] = np.flip(pixels[self.is_flipped], self.axis)
        return flipped

    def move_boxes(self, boxes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return *boxes*, those of reflected images with new sides."""
        flipped, moved = boxes.copy(), self.is_flipped[rows]
        first = -1 - self.axis
        flipped[moved, first], flipped[moved, first + 2] = (
            self.length - boxes[moved, first + 2],
            self.length - boxes[moved, first],
        )
        return flipped


def random_crop(images: np.ndarray, draws: SampleDraws, config: RandomCrop) -> Crop:
    """Return a part of each padded image in *images*.

    Raises `BuilderError` if the padded images are smaller.
    """
    height, width = config.size or images.shape[2:]
    rows, columns = (
        length + 2 * config.padding - size
        for length, size in zip(images.shape[2:], (height, width), strict=True)
    )
    if min(rows, columns) < 0:
        raise BuilderError(
            f"augmentation 'random_crop' cannot cut {height}×{width} pixels out of images of "
            f"{images.shape[2]}×{images.shape[3]} with padding {config.padding}. Set a smaller size or more "
            "padding"
        )
    return Crop(draws.integers(rows + 1), draws.integers(columns + 1), (height, width), config)


def random_flip(
    images: np.ndarray, draws: SampleDraws, config: HorizontalFlip | VerticalFlip, *, axis: int
) -> Flip:
    """Return a reflection of some of *images* along *axis*."""
    return Flip(draws.uniform() < config.p, axis, images.shape[axis])


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
    changed: np.ndarray[Any, Any] = images.astype(np.promote_types(images.dtype, np.float32))
    changed *= _factors(draws, config.brightness, changed.dtype)
    if config.contrast:
        means = np.array([image.mean(dtype=np.float64) for image in changed])  # a batched mean may round
        centers = means.astype(changed.dtype)[:, None, None, None]  # each image in another order
        changed -= centers
        changed *= _factors(draws, config.contrast, changed.dtype)
        changed += centers
    if images.dtype.kind in "iu":
        limits = np.iinfo(images.dtype)
        highest = limits.max - (limits.max >> 53)  # a float64 rounds the largest integer of 64 bits up
        np.clip(np.rint(changed, out=changed), limits.min, highest, out=changed)
    return changed.astype(images.dtype, copy=False)


Operation = Callable[[np.ndarray, SampleDraws, Any], np.ndarray]
OPERATIONS: Mapping[type, Operation] = {RandomErasing: random_erasing, ColorJitter: color_jitter}
MOVES: Mapping[type, Callable[[np.ndarray, SampleDraws, Any], Crop | Flip]] = {
    RandomCrop: random_crop,
    HorizontalFlip: partial(random_flip, axis=-1),
    VerticalFlip: partial(random_flip, axis=-2),
}


def _pad(images: np.ndarray, padding: int, fill: float) -> np.ndarray:
    if not padding:
        return images
    *batch, height, width = images.shape
    padded = np.full((*batch, height + 2 * padding, width + 2 * padding), fill, images.dtype)
    padded[..., padding : padding + height, padding : padding + width] = images
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

    def __init__(
        self,
        augmentations: Sequence[Augmentation],
        seed: int,
        *,
        kinds: Mapping[str, str] | None = None,
        views: int = 1,
    ) -> None:
        self._augmentations = [(f"augment-{n}", augmentation) for n, augmentation in enumerate(augmentations)]
        self._seed = seed
        self._kinds = kinds or DEFAULT_KINDS
        self._join = Samples.of if kinds else _Items.of
        self._views = views

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
        """Return *items*, the samples at *indices*, after all changes; with several views, `Samples` of them.

        Raises `BuilderError` if a built-in kind cannot change an input, such as one that is not an image.
        """
        indices = to_tensor(indices)
        samples = items if isinstance(items, Samples) else self._join(items)
        views = [self._augment_view(samples, view, epoch, indices) for view in range(self._views)]
        if len(views) > 1:
            return Samples(Views(view.inputs for view in views), views[0].targets)
        is_stacked = isinstance(items, Samples) and not isinstance(views[0].inputs, list)
        return views[0] if is_stacked else _list_samples(views[0])

    def _augment_view(self, samples: Samples, view: int, epoch: int, indices: Tensor) -> Samples:
        for name, augmentation in self._augmentations:
            path = (name, epoch, *(("view", view) if view else ()))
            draws = partial(SampleDraws, derive_seed(self._seed, *path))
            if isinstance(augmentation, BuiltIn):
                samples = self._change_images(augmentation, samples, draws, indices)
            else:
                samples = _call_for_each(augmentation, samples, draws(indices).seeds())
        return samples

    def _change_images(
        self, config: BuiltIn, samples: Samples, make_draws: Callable[[Any], SampleDraws], indices: Tensor
    ) -> Samples:
        """Return *samples* after a built-in kind: together if they are stacked, else one by one."""
        if not isinstance(samples.inputs, list):
            return self._change_leaves(config, samples, partial(make_draws, indices))
        changed = [
            self._change_leaves(config, Samples(image[None]), partial(make_draws, index[None])).inputs[0]
            for image, index in zip(samples.inputs, indices, strict=True)
        ]
        return replace(samples, inputs=changed)

    def _change_leaves(
        self, config: BuiltIn, samples: Samples, make_draws: Callable[[], SampleDraws]
    ) -> Samples:
        leaves = flatten(samples.inputs, "inputs") | flatten(samples.targets, "targets")
        arrays = {name: leaf.numpy() if isinstance(leaf, Tensor) else leaf for name, leaf in leaves.items()}
        changed = augment_leaves(config, arrays, self._kinds, make_draws)
        leaves |= {name: _to_tensor(leaf) for name, leaf in changed.items() if leaf is not arrays[name]}
        return replace(samples, inputs=unflatten(leaves, "inputs"), targets=unflatten(leaves, "targets"))


class _Items(Samples):
    """Samples of a dataset of a user, which are pairs, longer tuples or inputs; the targets are the rest."""

    @classmethod
    def of(cls, items: Sequence[Any]) -> Samples:
        """Return *items* with their inputs as one tensor if possible, else as a list."""
        if isinstance(items[0], Tensor | Mapping):
            return cls(_stack(items))
        return cls(_stack([item[0] for item in items]), [tuple(item[1:]) for item in items])


def _list_samples(samples: Samples) -> list[Any]:
    """Return *samples* one by one, in the form of the dataset."""
    count = len(samples.targets if isinstance(samples.inputs, list) else samples)
    rows = [take(samples.inputs, index) for index in range(count)]
    if samples.targets is None:
        return rows
    if isinstance(samples, _Items):
        return [(value, *rest) for value, rest in zip(rows, samples.targets, strict=True)]
    return [(value, take(samples.targets, index)) for index, value in enumerate(rows)]


def _to_tensor(array: Any) -> Any:
    if isinstance(array, Ragged):
        return replace(array, values=to_tensor(array.values))
    return torch.from_numpy(array)


def _call_for_each(transform: Callable[[Any], Any], samples: Samples, seeds: Sequence[int]) -> Samples:
    """Return *samples* after a transform of each input, or of each sample if it has ``whole_sample``."""
    is_of_sample = getattr(transform, "whole_sample", False) is True
    items = _list_samples(samples)
    changed = []
    for item, seed in zip(items, seeds, strict=True):
        seed_host_generators(seed)
        changed.append(transform(item if is_of_sample or samples.targets is None else item[0]))
    if not is_of_sample:
        return replace(samples, inputs=_stack(changed))
    if isinstance(samples, _Items):
        return _Items.of(changed)
    return _restack(changed, samples)


def _restack(items: Sequence[Any], before: Samples) -> Samples:
    """Return *items*, changed samples, with the leaves that were ragged *before* ragged again."""
    stacked = {}
    parts = ("inputs", "targets") if before.targets is not None else ("inputs",)
    trees = zip(*items, strict=True) if len(parts) > 1 else [items]
    for part, samples in zip(parts, trees, strict=True):
        leaves = flatten(getattr(before, part), part)
        rows = [flatten(sample, part) for sample in samples]
        for name in rows[0]:
            values = [row[name] for row in rows]
            is_ragged = isinstance(leaves.get(name), Ragged)
            stacked[name] = _to_tensor(Ragged.of(values)) if is_ragged else torch.stack(values)
    return Samples(unflatten(stacked, "inputs"), unflatten(stacked, "targets"))


def _stack(inputs: Any) -> Any:
    """Return *inputs* as one tensor if they are tensors of one shape and dtype, else as a list."""
    if isinstance(inputs[0], Mapping):
        return stack(inputs)
    if not all(isinstance(item, Tensor) for item in inputs):
        return list(inputs)
    return torch.stack(inputs) if len({(item.shape, item.dtype) for item in inputs}) == 1 else list(inputs)


def build_augmentation(config: BuiltIn | Use) -> Augmentation:
    """Return the augmentation that *config* names: a built-in kind, or an instance of a class or a function.

    A class is built with the arguments in *config*; a function receives them at each call, after the input.
    Raises `PluginError` if it cannot be built.
    """
    if not isinstance(config, Use):
        return config
    augmentation: Augmentation = plugins.build_callable(
        "augmentation", config, AUGMENTATIONS, check_augmentation
    )
    return augmentation


def check_augmentation(augmentation: Any) -> Augmentation:
    """Return *augmentation*. Raises `BuilderError` if it cannot be called with an input."""
    if isinstance(augmentation, BuiltIn) or (callable(augmentation) and not isinstance(augmentation, type)):
        return augmentation
    name = augmentation.__name__ if isinstance(augmentation, type) else type(augmentation).__name__
    raise BuilderError(
        f"an augmentation must be a built-in kind, a function of an input, or an object that can be called "
        f"with one; found {name}. Pass an instance of a class, not the class"
    )
