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

TILE_PIXELS = 64
"""Smaller images are enlarged to about this height and width."""
GAP_PIXELS = 2
GRAY = 128
RGB_CHANNELS = 3
MAX_SHOWN_VALUES = 6


@dataclass(frozen=True)
class SampleSheet:
    """The first samples of a split in several epochs."""

    epochs: Sequence[int]
    inputs: Sequence[Tensor]
    """The inputs of all samples in each epoch, (N, …), not normalized."""
    targets: Sequence[Any]
    """The target of each sample."""

    @property
    def has_images(self) -> bool:
        """True if the inputs are images (C, H, W)."""
        return all(images.ndim == 4 for images in self.inputs)

    def to_png(self) -> bytes:
        """Return the images as one image, with a row for each sample and a column for each epoch.

        Three or more channels are red, green and blue; otherwise the first one is gray. The smallest value of
        the sheet is black and the largest is white.
        """
        low = min(float(images.min()) for images in self.inputs)
        high = max(float(images.max()) for images in self.inputs)
        columns = [_to_column(images, low, (high - low) or 1.0) for images in self.inputs]
        height = max(len(column) for column in columns)
        pixels = np.full((height, sum(column.shape[1] for column in columns), *columns[0].shape[2:]), GRAY)
        offset = 0
        for column in columns:
            pixels[: len(column), offset : offset + column.shape[1]] = column
            offset += column.shape[1]
        return encode_png(pixels.astype(np.uint8))

    def to_text(self) -> str:
        """Return a table with a line for each sample and each epoch."""
        lines = ["sample  epoch  target  input"]
        for sample, target in enumerate(self.targets):
            for epoch, inputs in zip(self.epochs, self.inputs, strict=True):
                lines.append(f"{sample:6}  {epoch:5}  {_format(target):>6}  {_format(inputs[sample])}")
        return "\n".join(lines) + "\n"


def read_samples(loader: DataLoader, epochs: Sequence[int], count: int) -> SampleSheet:
    """Return the first *count* samples of *loader*'s dataset as they are in each of *epochs*.

    Raises `DataError` if a batch does not begin with the inputs.
    """
    indices = range(min(count, len(loader.dataset)))
    batches = [_unpack(loader.read_samples(epoch, indices)) for epoch in epochs]
    return SampleSheet(epochs, [inputs for inputs, _ in batches], batches[0][1])


def encode_png(pixels: np.ndarray) -> bytes:
    """Return an image in the format PNG; *pixels* are uint8, (H, W) for gray or (H, W, 3) for colors."""
    height, width = pixels.shape[:2]
    lines = np.zeros((height, 1 + pixels[0].size), np.uint8)  # each line begins with its filter, 0
    lines[:, 1:] = pixels.reshape(height, -1)
    color_type = 0 if pixels.ndim == 2 else 2
    header = struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_encode_chunk(*chunk) for chunk in chunks)


def _encode_chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def _unpack(batch: Any) -> tuple[Tensor, Sequence[Any]]:
    """Return the inputs of *batch*, and the targets or an empty text for each sample."""
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if isinstance(parts, Tensor):
        parts = [parts]
    if not isinstance(parts, Sequence) or not parts or not isinstance(parts[0], Tensor):
        raise DataError(
            f"samples can be shown if a batch begins with a tensor of inputs; found the type "
            f"{type(batch).__name__}. Return (inputs, targets) from fit.batcher"
        )
    inputs = parts[0]
    targets = parts[1] if len(parts) > 1 and isinstance(parts[1], Tensor) else [""] * len(inputs)
    return inputs, list(targets)


def _to_column(images: Tensor, low: float, size: float) -> np.ndarray:
    """Return *images* (N, C, H, W) below each other, (height, width) or (height, width, 3), with gaps."""
    channels = RGB_CHANNELS if images.shape[1] >= RGB_CHANNELS else 1
    scaled = (images[:, :channels].double() - low) * (255 / size)
    values = scaled.round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    factor = max(1, TILE_PIXELS // max(values.shape[1:3]))
    values = values.repeat(factor, axis=1).repeat(factor, axis=2)
    gaps = ((0, 0), (0, GAP_PIXELS), (0, GAP_PIXELS), (0, 0))
    padded = np.pad(values, gaps, constant_values=GRAY)
    column = padded.reshape(-1, *padded.shape[2:])
    return column if channels == RGB_CHANNELS else column[:, :, 0]


def _format(value: Any) -> str:
    """Return the first values of a tensor as text, with its shape if there are more."""
    if not isinstance(value, Tensor):
        return str(value)
    shown = [f"{number:.4g}" for number in value.reshape(-1)[:MAX_SHOWN_VALUES].tolist()]
    more = f" … {tuple(value.shape)}" if value.numel() > MAX_SHOWN_VALUES else ""
    return " ".join(shown) + more
