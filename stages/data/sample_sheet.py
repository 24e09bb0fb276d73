"""Samples as a model is trained on them: as an image in the format PNG, or as a table of text."""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.contracts.errors import DataError
from stages.data.loaders import DataLoader
from stages.data.trees import Tree, count_rows, flatten, list_leaves, take

TILE_PIXELS = 64
"""Smaller images are enlarged to about this height and width."""
GAP_PIXELS = 2
GRAY = 128
WHITE = 255
RGB_CHANNELS = 3
MAX_SHOWN_VALUES = 6


@dataclass(frozen=True)
class SampleSheet:
    """The first samples of a split in several epochs."""

    epochs: Sequence[int]
    inputs: Sequence[Tree]
    """The inputs of all samples in each epoch, (N, …), not normalized."""
    targets: Sequence[Any]
    """The target of each sample."""
    targets_by_epoch: Sequence[Tree]
    """The targets of all samples in each epoch, whose masks and boxes may move."""

    @property
    def has_images(self) -> bool:
        """True if some inputs are images (C, H, W)."""
        return all(any(leaf.ndim == 4 for leaf in list_leaves(inputs)) for inputs in self.inputs)

    def to_png(self) -> bytes:
        """Return the images as one image, with a row for each sample and a column for each epoch.

        Masks are beside their images, and boxes are drawn on them. Three or more channels are red, green and
        blue; otherwise the first one is gray. The smallest value of the sheet is black and the largest is
        white.
        """
        pairs = list(zip(self.inputs, self.targets_by_epoch, strict=True))
        pictures = [_list_pictures(inputs, targets) for inputs, targets in pairs]
        limits = [
            (min(float(images.min()) for images in epochs), max(float(images.max()) for images in epochs))
            for epochs in zip(*pictures, strict=True)
        ]
        columns = [
            _to_column(images, low, (high - low) or 1.0, _find_boxes(targets))
            for epoch, (_, targets) in zip(pictures, pairs, strict=True)
            for images, (low, high) in zip(epoch, limits, strict=True)
        ]
        height, channels = (max(column.shape[axis] for column in columns) for axis in (0, 2))
        padded = [
            np.pad(
                np.broadcast_to(column, (*column.shape[:2], channels)),
                ((0, height - len(column)), (0, 0), (0, 0)),
                constant_values=GRAY,
            )
            for column in columns
        ]
        return encode_png(np.concatenate(padded, axis=1))

    def to_text(self) -> str:
        """Return a table with a line for each sample and each epoch."""
        lines = ["sample  epoch  target  input"]
        for sample, target in enumerate(self.targets):
            for epoch, inputs in zip(self.epochs, self.inputs, strict=True):
                value = _format(take(inputs, sample))
                lines.append(f"{sample:6}  {epoch:5}  {_format(target):>6}  {value}")
        return "\n".join(lines) + "\n"


def read_samples(loader: DataLoader, epochs: Sequence[int], count: int) -> SampleSheet:
    """Return the first *count* samples of *loader*'s dataset as they are in each of *epochs*.

    Raises `DataError` if a batch does not begin with the inputs.
    """
    indices = range(min(count, len(loader.dataset)))
    batches = [_unpack(loader.read_samples(epoch, indices)) for epoch in epochs]
    inputs, targets = ([part[place] for part in batches] for place in (0, 1))
    count = count_rows(inputs[0])
    of_samples = [""] * count if targets[0] is None else [take(targets[0], row) for row in range(count)]
    return SampleSheet(epochs, inputs, of_samples, targets)


def encode_png(pixels: np.ndarray) -> bytes:
    """Return an image in the format PNG; *pixels* are uint8, (H, W) or (H, W, 1) for gray, or (H, W, 3)."""
    height, width = pixels.shape[:2]
    lines = np.zeros((height, 1 + pixels[0].size), np.uint8)  # each line begins with its filter, 0
    lines[:, 1:] = pixels.reshape(height, -1)
    color_type = 2 if pixels.shape[2:] == (RGB_CHANNELS,) else 0
    header = struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_encode_chunk(*chunk) for chunk in chunks)


def _encode_chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def _unpack(batch: Any) -> tuple[Tree, Tree]:
    """Return the inputs and the targets of *batch*; None without targets."""
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if isinstance(parts, Tensor):
        parts = [parts]
    is_sequence = isinstance(parts, Sequence) and not isinstance(parts, str)
    if not is_sequence or not parts or not all(isinstance(leaf, Tensor) for leaf in list_leaves(parts[0])):
        raise DataError(
            f"samples can be shown if a batch begins with a tensor of inputs; found the type "
            f"{type(batch).__name__}. Return (inputs, targets) from fit.batcher"
        )
    targets = parts[1] if len(parts) > 1 else None
    is_shown = isinstance(targets, Tensor | Mapping | tuple)
    return parts[0], targets if is_shown else None


def _list_pictures(inputs: Tree, targets: Tree) -> list[Tensor]:
    """Return the images of *inputs*, and the masks of *targets* with one channel, (N, C, H, W)."""
    images = [leaf for leaf in list_leaves(inputs) if leaf.ndim == 4]
    sizes = {image.shape[2:] for image in images}
    arrays = [leaf for leaf in list_leaves(targets) if isinstance(leaf, Tensor)]
    masks = [leaf[:, None] for leaf in arrays if leaf.ndim == 3 and leaf.shape[1:] in sizes]
    return images + masks


def _find_boxes(targets: Tree) -> Sequence[Tensor]:
    """Return the boxes of each sample, (n, 4); none without boxes."""
    lists = [leaf for leaf in list_leaves(targets) if isinstance(leaf, list)]
    boxes = [leaf for leaf in lists if leaf[0].ndim == 2 and leaf[0].shape[1] == 4]
    return boxes[0] if boxes else []


def _to_column(images: Tensor, low: float, size: float, boxes: Sequence[Tensor]) -> np.ndarray:
    """Return *images* (N, C, H, W) with *boxes* below each other, (height, width, 1 or 3), with gaps."""
    channels = RGB_CHANNELS if images.shape[1] >= RGB_CHANNELS else 1
    scaled = (images[:, :channels].double() - low) * (255 / size)
    values = scaled.round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    factor = max(1, TILE_PIXELS // max(values.shape[1:3]))
    values = values.repeat(factor, axis=1).repeat(factor, axis=2)
    for tile, rows in zip(values, boxes, strict=False):
        _draw_boxes(tile, rows * factor)
    gaps = ((0, 0), (0, GAP_PIXELS), (0, GAP_PIXELS), (0, 0))
    padded = np.pad(values, gaps, constant_values=GRAY)
    return padded.reshape(-1, *padded.shape[2:])


def _draw_boxes(tile: np.ndarray, boxes: Tensor) -> None:
    """Draw the parts of *boxes*, (n, 4), that are within *tile*, (height, width, channels)."""
    height, width = tile.shape[:2]
    corners = boxes.long().clamp(min=0)
    for left, top, right, bottom in corners.minimum(corners.new_tensor([width, height] * 2)).tolist():
        if left < right and top < bottom:
            tile[[top, bottom - 1], left:right] = WHITE
            tile[top:bottom, [left, right - 1]] = WHITE


def _format(value: Any) -> str:
    """Return the first values of a tensor as text, with its shape if there are more."""
    if isinstance(value, Mapping | tuple):
        leaves = flatten(value, "leaf").items()
        return ", ".join(f"{name.partition('.')[2]}: {_format(leaf)}" for name, leaf in leaves)
    if not isinstance(value, Tensor):
        return str(value)
    shown = [f"{number:.4g}" for number in value.reshape(-1)[:MAX_SHOWN_VALUES].tolist()]
    more = f" … {tuple(value.shape)}" if value.numel() > MAX_SHOWN_VALUES else ""
    return " ".join(shown) + more
