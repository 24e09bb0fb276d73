"""Arrays that cannot be trained on are refused in one line; every other array is converted without loss."""

import io
import re
import warnings
import zipfile

import numpy as np
import pytest
import torch

from stages import data
from stages.contracts.errors import DataError
from stages.data.config import Npz
from stages.data.raw_arrays import BLOCK_BYTES, row_blocks
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data

X = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
Y = np.arange(20) % 2
HOLES = X.copy()
HOLES[3, 1] = np.nan


def prepared(folder, inputs, targets):
    """Return the data that load-data prepares from an archive with these two arrays."""
    np.savez(folder / "data.npz", inputs=inputs, targets=targets)
    load_data(
        LoadDataConfig(source=Npz(kind="npz", path=str(folder / "data.npz"))),
        LoadDataPaths(folder / "prepared"),
    )
    return data.read(folder / "prepared")


def refusal(folder, inputs, targets):
    with pytest.raises(DataError) as caught, warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared(folder, inputs, targets)
    return str(caught.value)


REFUSED = {
    "0-d": (np.float32(3), Y, "inputs must have one row per sample; found shape ()"),
    "0-d targets": (X, np.int64(1), "targets must have one row per sample; found shape ()"),
    "long double": (X.astype(np.longdouble), Y, f"found {np.dtype(np.longdouble)}"),
    "long double targets": (X, Y.astype(np.longdouble), "targets must be numbers of at most 64 bits"),
    "no features": (X[:, :0], Y, "inputs must have at least one value per sample; found shape (20, 0)"),
    "no features in two axes": (np.zeros((20, 3, 0)), Y, "found shape (20, 3, 0)"),
    "targets without values": (X, np.zeros((20, 0)), "targets must have at least one value per sample"),
    "no samples": (X[:0], Y[:0], "inputs must have at least one sample; found shape (0, 4)"),
    "other lengths": (X, Y[:-1], "must have the same number of samples; found 20 and 19"),
    "complex": (X.astype(complex), Y, "found complex128"),
    "object": (np.array([{}] * 20), Y, "inputs must be numbers of at most 64 bits; found object"),
    "object targets": (X, np.array(["a"] * 20, object), "targets must be numbers"),
    "structured": (np.zeros(20, [("a", "f4")]), Y, "found [('a', '<f4')]"),
    "structured with objects": (np.zeros(20, [("ä", "f4"), ("b", object)]), Y, "inputs"),
    "datetime": (np.zeros((20, 2), "M8[s]"), Y, "found datetime64[s]"),
    "timedelta": (np.zeros((20, 2), "m8[s]"), Y, "found timedelta64[s]"),
    "text": (X, np.array(["cat", "dog"] * 10), "targets must be numbers of at most 64 bits; found <U3"),
    "NaN": (HOLES, Y, "inputs must be finite; found nan in sample 3"),
    "infinite targets": (X, np.where(Y, np.inf, 0), "targets must be finite; found inf in sample 1"),
    "beyond float32": (X.astype(float) * 0 - 1e300, Y, "must fit into float32; found -1e+300 in sample 0"),
    "targets beyond float32": (X, Y * 1e39, "targets must fit into float32; found 1e+39 in sample 1"),
    "beyond int64": (np.full((20, 2), 2**63, np.uint64), Y, "must fit into int64; found 9223372036854775808"),
    "classes beyond int64": (X, np.full(20, 2**64 - 1, np.uint64), "targets must fit into int64"),
    "a negative class": (X, Y - 1, "class targets must be non-negative; found -1 in sample 0"),
    "a class like a time": (X, Y * 10**12, "must be below 10,000,000; found 1000000000000 in sample 1"),
    "classes as a column": (X, Y[:, None], "found shape (20, 1) for inputs (20, 4). Save one integer per"),
    "classes one-hot": (
        X,
        np.eye(2, dtype=int)[Y],
        "found shape (20, 2) for inputs (20, 4). Save one integer",
    ),
    "classes and inputs as columns": (X[:, :1], Y[:, None], "found shape (20, 1) for inputs (20, 1)"),
    "negative class of an element": (X, np.full((20, 4), -1), "must be non-negative; found -1 in sample 0"),
}


@pytest.mark.parametrize(("inputs", "targets", "words"), REFUSED.values(), ids=REFUSED)
def test_unusable_array_is_rejected_in_one_line_with_file_and_array(tmp_path, inputs, targets, words):
    message = refusal(tmp_path, inputs, targets)

    assert f"{tmp_path / 'data.npz'}: " in message
    assert words in message
    assert "\n" not in message
    assert "pickle" not in message
    assert re.search(r"; found .*\. [A-Z]", message)  # what is wrong; the value found. what to do


FORTRAN = np.asfortranarray(np.arange(80.0).reshape(20, 4))
CONVERTED = {
    "big-endian": (X.astype(">f4"), torch.float32),
    "big-endian float64": (X.astype(">f8"), torch.float32),
    "big-endian int16": (FORTRAN.astype(">i2"), torch.int16),
    "float64": (X.astype(float), torch.float32),
    "float16": (X.astype(np.float16), torch.float32),
    "Fortran order": (FORTRAN.astype(np.float32), torch.float32),
    "bool": (X > 0, torch.bool),
    "uint64": (FORTRAN.astype(np.uint64), torch.uint64),
    "one axis": (X[:, 0], torch.float32),
}


@pytest.mark.parametrize(("inputs", "dtype"), CONVERTED.values(), ids=CONVERTED)
@pytest.mark.parametrize("targets", [Y.astype(">i4"), Y > 0, Y.astype(">f8")], ids=["i4", "bool", "f8"])
def test_numbers_are_stored_with_their_values(tmp_path, inputs, dtype, targets):
    train, valid = (getattr(prepared(tmp_path, inputs, targets), split) for split in ("train", "valid"))

    def rows(inputs, targets):
        flat = np.asarray(inputs).astype(np.float32).reshape(20, -1)
        return sorted(map(tuple, np.column_stack([flat, np.asarray(targets).astype(np.float32)]).tolist()))

    together = [torch.cat([getattr(train, name), getattr(valid, name)]) for name in ("inputs", "targets")]
    assert train.inputs.dtype == dtype
    assert train.targets.dtype == (torch.float32 if targets.dtype.kind == "f" else torch.int64)
    assert rows(*together) == rows(inputs, targets)


def test_read_only_memory_map_trains_without_a_warning(tmp_path):
    np.save(tmp_path / "x.npy", X)
    half = data.Arrays(np.load(tmp_path / "x.npy", mmap_mode="r"), Y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = data.prepare(data.Splits(half, half))

    assert torch.equal(made.train.inputs, torch.from_numpy(X))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([[1, 2], [3]], "the train split: inputs cannot be converted to an array"),
        (np.ma.masked_less(X, 0), "the train split: inputs must not be a masked array"),
        (np.zeros(()), "the train split: inputs must have one row per sample"),
    ],
)
def test_unusable_result_of_a_source_is_rejected(inputs, words):
    with pytest.raises(DataError, match=words):
        data.prepare(data.Splits(data.Arrays(inputs, Y), data.Arrays(X, Y)))


def npy(array, **changes):
    """Return the content of a .npy file whose header has *changes* to that of *array*."""
    file = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(array) | changes
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


DAMAGED = {
    "too large a shape": (npy(X, shape=(10**9, 4)), "inputs is truncated or corrupt"),
    "too small a shape": (npy(X, shape=(19, 4)), "inputs is truncated or corrupt"),
    "a negative shape": (npy(X, shape=(-20, -4)), "inputs is truncated or corrupt"),
    "not an array": (b"hello", "inputs is not a NumPy array"),
    "a header without meaning": (npy(X).replace(b"descr", b"desks"), "inputs is not a NumPy array"),
    "an endless header": (
        b"\x93NUMPY\x02\x00" + (60_000).to_bytes(4, "little") + b" " * 60_000,
        "inputs is not a NumPy array",
    ),
}


@pytest.mark.parametrize(("content", "words"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_member_of_an_archive_is_rejected_without_advice_to_load_pickles(tmp_path, content, words):
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("inputs.npy", content)
        archive.writestr("targets.npy", npy(Y))

    with pytest.raises(DataError) as caught:
        data.load_source(Npz(kind="npz", path=str(tmp_path / "data.npz")))

    assert words in str(caught.value)
    assert "pickle" not in str(caught.value)


def flip(content):
    place = content.index(X.tobytes()[:16])
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def one_array(content):
    return npy(X)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (flip, "inputs is truncated or corrupt"),
        (one_array, "is a single array (.npy)"),
        (lambda content: content[:100], "is not a readable NumPy archive"),
        (lambda content: b"\x80\x04N.", "is not a readable NumPy archive"),
    ],
)
def test_file_that_is_not_an_intact_archive_is_rejected(tmp_path, change, words):
    path = tmp_path / "data.npz"
    np.savez(path, inputs=X, targets=Y)
    path.write_bytes(change(path.read_bytes()))

    with pytest.raises(DataError) as caught:
        data.load_source(Npz(kind="npz", path=str(path)))

    assert words in str(caught.value)
    assert "pickle" not in str(caught.value)


@pytest.mark.parametrize("content", [npy(X), b"x,y\n1,2\n"])
def test_file_that_is_no_archive_is_rejected_with_the_call_that_writes_one(tmp_path, content):
    (tmp_path / "data.npz").write_bytes(content)

    with pytest.raises(DataError, match=r"\. Save both arrays in one file with np\.savez\(path, inputs="):
        data.load_source(Npz(kind="npz", path=str(tmp_path / "data.npz")))


@pytest.mark.parametrize(
    ("rows", "row_bytes", "sizes"),
    [
        (0, 8, []),
        (3, 8, [3]),
        (2 * BLOCK_BYTES + 1, 1, [BLOCK_BYTES, BLOCK_BYTES, 1]),
        (5, BLOCK_BYTES // 2, [2, 2, 1]),
        (3, BLOCK_BYTES, [1, 1, 1]),
        (2, 3 * BLOCK_BYTES, [1, 1]),
    ],
)
def test_block_has_as_many_rows_as_fit_and_at_least_one(rows, row_bytes, sizes):
    blocks = list(row_blocks(rows, row_bytes))

    assert [block.stop - block.start for block in blocks] == sizes
    assert [block.start for block in blocks] == [sum(sizes[:number]) for number in range(len(sizes))]


def test_arrays_with_other_names_are_not_read(tmp_path):
    np.savez(tmp_path / "data.npz", inputs=X, targets=Y, names=np.array(["cat", "dog"], object))

    loaded = data.load_source(Npz(kind="npz", path=str(tmp_path / "data.npz")))

    assert np.array_equal(loaded.inputs, X)


def test_each_element_of_a_sequence_may_have_a_class(tmp_path):
    """Elements of the class -100 are ignored, also in the counts."""
    targets = np.tile(np.array([0, 2, 1, -100]), (20, 1))

    made = prepared(tmp_path, np.ones((20, 4), np.int64), targets)

    assert torch.equal(made.train.targets, torch.from_numpy(targets[:16]))
    assert (made.info.num_classes, made.info.target_shape) == (3, (4,))
    assert made.info.class_counts == {"train": [16, 16, 16], "valid": [4, 4, 4]}
