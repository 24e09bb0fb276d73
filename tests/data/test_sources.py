"""Data sources, and data that is rejected."""

import gzip
import struct

import numpy as np
import pytest
import torch

from stages import data
from stages.contracts.config import Use
from stages.contracts.errors import DataError, PluginError
from stages.data.config import Digits, Idx, Npz


def idx_bytes(array):
    return (
        struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    )


def write_idx(folder, *, zipped=False, images=30, labels=30, valid=12):
    rng = np.random.default_rng(0)
    for prefix, count, classes in (("train", images, labels), ("t10k", valid, valid)):
        contents = {
            f"{prefix}-images-idx3-ubyte": idx_bytes(rng.integers(0, 256, (count, 6, 5))),
            f"{prefix}-labels-idx1-ubyte": idx_bytes(np.arange(classes) % 3),
        }
        for name, content in contents.items():
            (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(content) if zipped else content)
    return Idx(kind="idx", path=str(folder))


def test_digits_are_split_by_class():
    splits = data.split(data.load_source(Digits()), 0.2, seed=42)

    assert (len(splits.train), len(splits.valid)) == (1438, 359)
    assert splits.train.inputs.dtype == np.uint8
    assert set(np.bincount(splits.valid.targets)) <= {35, 36, 37}


def test_split_depends_on_its_seed_only():
    digits = data.load_source(Digits())
    one, same, other = (data.split(digits, 0.2, seed).valid.inputs for seed in (1, 1, 2))

    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_are_read_with_and_without_gzip(tmp_path, zipped):
    splits = data.load_source(write_idx(tmp_path, zipped=zipped))

    assert splits.train.inputs.shape == (30, 1, 6, 5)
    assert splits.valid.targets.tolist() == [0, 1, 2] * 4


def test_npz_accepts_both_sets_of_names(tmp_path):
    x, y = np.zeros((9, 4), np.float32), np.arange(9) % 3
    np.savez(tmp_path / "one.npz", inputs=x, targets=y)
    np.savez(tmp_path / "two.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3])

    assert len(data.load_source(Npz(kind="npz", path=str(tmp_path / "one.npz")))) == 9
    assert len(data.load_source(Npz(kind="npz", path=str(tmp_path / "two.npz"))).valid) == 3


def test_prepared_data_keeps_its_type(tmp_path):
    data.write(tmp_path, data.prepare(data.split(data.load_source(Digits()), 0.2, 42)))

    prepared = data.read(tmp_path)

    assert prepared.train.inputs.dtype == torch.uint8
    assert prepared.info.input_shape == (1, 8, 8)
    assert prepared.info.num_classes == 10
    assert prepared.info.counts == {"train": 1438, "valid": 359}
    assert sum(prepared.info.class_counts["train"]) == 1438
    assert prepared.info.normalization.mean == pytest.approx(prepared.train.inputs.double().mean().item())


def test_float_targets_are_regression():
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.ones((20, 2))

    info = data.prepare(data.split(data.Arrays(x, y), 0.25, 0)).info

    assert (info.task, info.num_classes, info.num_outputs, info.target_shape) == ("regression", None, 2, (2,))


def test_archive_with_pickles_is_not_opened(tmp_path):
    np.savez(tmp_path / "bad.npz", inputs=np.array([{}], dtype=object), targets=np.array([0]))

    with pytest.raises(DataError, match="inputs must be numbers of at most 64 bits; found object"):
        data.load_source(Npz(kind="npz", path=str(tmp_path / "bad.npz")))


def test_idx_labels_of_floats_are_not_rounded(tmp_path):
    source = write_idx(tmp_path)
    header = struct.pack(">HBBI", 0, 0x0D, 1, 30)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(header + np.full(30, 0.5, ">f4").tobytes())

    assert set(data.load_source(source).train.targets.tolist()) == {0.5}


def cut(folder):
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])


def cut_gzip(folder):
    path = folder / "train-images-idx3-ubyte"
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    path.with_suffix(".gz").write_bytes(packed[: len(packed) // 2])


@pytest.mark.parametrize(
    ("sizes", "harm", "words"),
    [
        ({"labels": 29}, lambda _: None, "must have the same number of samples; found 30 and 29"),
        ({}, cut, "is truncated or corrupt: shape \\(30, 6, 5\\) takes 900 bytes; found"),
        ({}, cut_gzip, "is truncated or corrupt"),
        (
            {},
            lambda folder: (folder / "t10k-labels-idx1-ubyte").unlink(),
            "contains neither t10k-labels-idx1-ubyte",
        ),
        ({}, lambda folder: (folder / "t10k-labels-idx1-ubyte").write_bytes(b"hello"), "is not an IDX file"),
    ],
)
def test_damaged_idx_files_are_rejected(tmp_path, sizes, harm, words):
    source = write_idx(tmp_path, **sizes)
    harm(tmp_path)

    with pytest.raises(DataError, match=words):
        data.prepare(data.load_source(source))


def arrays(count=10, classes=2, **changes):
    made = {"inputs": np.zeros((count, 4), np.float32), "targets": np.arange(count) % classes}
    return data.Arrays(**{**made, **changes})


@pytest.mark.parametrize(
    ("train", "valid", "words"),
    [
        (arrays(classes=1), arrays(), "one class only"),
        (arrays(targets=np.full((10, 4), -100)), arrays(targets=np.eye(10, 4, dtype=int)), "ignored targets"),
        (arrays(), arrays(count=0), "the valid split: inputs must have at least one sample"),
        (
            arrays(),
            arrays(count=5, targets=np.arange(4)),
            "the valid split: targets must have the same number of samples; found 5 and 4",
        ),
        (
            arrays(),
            arrays(inputs=np.zeros((10, 5), np.float32)),
            r"found float32 of shape \(4,\) in train and float32 of shape \(5,\) in valid",
        ),
        (
            arrays(inputs=np.full((10, 4), np.nan)),
            arrays(),
            "the train split: inputs must be finite; found nan in sample 0",
        ),
        (arrays(targets=np.arange(10) - 1), arrays(), "must be non-negative; found -1"),
        (arrays(targets=np.array(["a"] * 10)), arrays(), "must be numbers"),
    ],
)
def test_unusable_data_is_rejected(train, valid, words):
    with pytest.raises(DataError, match=words):
        data.prepare(data.Splits(train, valid))


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_empty_split_is_rejected(fraction):
    with pytest.raises(DataError, match="an empty split"):
        data.split(arrays(), fraction, 0)


def test_source_that_returns_another_type_is_rejected():
    with pytest.raises(PluginError, match="must return stages.data.Arrays.*; found dict"):
        data.load_source(Use(kind="builtins:dict"))
