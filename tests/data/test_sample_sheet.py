"""Sheets of samples as trained on."""

import struct
import zlib

import numpy as np
import pytest
import torch

from stages.contracts.errors import DataError
from stages.data import DataLoaderBuilder, HorizontalFlip, NormalizeBatcher, TensorDataset
from stages.data.sample_sheet import SampleSheet, encode_png, read_samples


def decode_png(content):
    """Return the pixels of a PNG file without filters, and check the length and checksum of each chunk."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    position, chunks = 8, {}
    while position < len(content):
        (length,) = struct.unpack_from(">I", content, position)
        kind, data = content[position + 4 : position + 8], content[position + 8 : position + 8 + length]
        assert struct.unpack_from(">I", content, position + 8 + length) == (zlib.crc32(kind + data),)
        chunks[kind], position = data, position + 12 + length
    width, height, depth, color_type, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, rest, chunks[b"IEND"]) == (8, [0, 0, 0], b"")
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, {0: 1, 2: 3}[color_type])


NORMALIZE = NormalizeBatcher(3.0, 2.0)


def build(inputs, augmentations=(), batcher=NORMALIZE):
    dataset = TensorDataset(inputs, torch.arange(len(inputs)))
    return DataLoaderBuilder(batcher).shuffle(1).augment(augmentations).build(dataset)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (1, 1)])
def test_png_has_the_pixels(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

    assert np.array_equal(decode_png(encode_png(pixels)), pixels.reshape(*shape[:2], -1))


def test_sheet_has_a_row_for_each_sample_and_a_column_for_each_epoch():
    images = torch.zeros(3, 1, 40, 50, dtype=torch.uint8)
    images[..., :25] = torch.tensor([1, 2, 4]).reshape(3, 1, 1, 1)

    sheet = read_samples(build(images, [HorizontalFlip()]), epochs=range(1, 9), count=2)
    pixels = decode_png(sheet.to_png())[:, :, 0]

    assert pixels.shape == (2 * 42, 8 * 52)
    tiles = pixels.reshape(2, 42, 8, 52)[:, :40, :, :50].swapaxes(1, 2)
    assert set(tiles[0].flatten().tolist()) == {0, 128}
    assert set(tiles[1].flatten().tolist()) == {0, 255}
    assert 0 < np.count_nonzero(tiles[1, :, 0, 0]) < 8


def test_small_color_images_are_enlarged():
    images = torch.rand(2, 3, 8, 8)

    pixels = decode_png(read_samples(build(images), [1], count=9).to_png())

    assert pixels.shape == (2 * 66, 66, 3)
    expected = (images[1] - images.min()) * (255 / (images.max() - images.min()))
    assert np.abs(pixels[66:130:8, 0:64:8].astype(int) - expected.permute(1, 2, 0).numpy()).max() < 1


def test_parts_of_boxes_within_the_image_are_drawn():
    """Boxes of COCO may end outside of their image."""
    boxes = torch.tensor([[60.0, 10.0, 90.0, 70.0], [-9.0, -9.0, 5.0, 5.0], [80.0, 0.0, 90.0, 9.0]])
    sheet = SampleSheet([1], [torch.zeros(1, 1, 64, 64)], [""], [{"boxes": [boxes]}])

    pixels = decode_png(sheet.to_png())[:64, :64, 0]

    assert (pixels[10:64, [60, 63]] == 255).all()
    assert (pixels[[0, 4], 0:5] == 255).all()
    assert np.count_nonzero(pixels) == 2 * (54 + 4) - 4 + 16


def test_other_inputs_are_a_table():
    sheet = read_samples(build(torch.arange(20.0).reshape(2, 10) / 4), [1, 3], count=2)

    assert not sheet.has_images
    assert sheet.to_text().splitlines() == [
        "sample  epoch  target  input",
        "     0      1       0  0 0.25 0.5 0.75 1 1.25 … (10,)",
        "     0      3       0  0 0.25 0.5 0.75 1 1.25 … (10,)",
        "     1      1       1  2.5 2.75 3 3.25 3.5 3.75 … (10,)",
        "     1      3       1  2.5 2.75 3 3.25 3.5 3.75 … (10,)",
    ]


def test_batches_without_inputs_are_refused():
    with pytest.raises(DataError, match="begins with a tensor of inputs; found the type str"):
        read_samples(build(torch.zeros(4, 2), batcher=repr), [1], count=2)


def test_own_batcher_is_applied():
    sheet = read_samples(build(torch.ones(4, 2), batcher=lambda items: [items.inputs * 3]), [1], count=2)

    assert sheet.inputs[0].tolist() == [[3, 3], [3, 3]]
    assert sheet.targets == ["", ""]
