"""Blocks in which load-data reads and writes: their memory, and the bytes that they write."""

import gzip
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from long_tests import covering_cases, long
from safetensors.torch import save
from sklearn.model_selection import train_test_split

from stages import data
from stages.contracts.errors import DataError
from stages.data import splits
from stages.data.config import Npz
from stages.data.storage import DatasetInfo
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data
from stages.records.safetensors_format import pack_header

MEASURE = """
import sys
from pathlib import Path
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data
load_data(LoadDataConfig(source={"kind": sys.argv[1], "path": sys.argv[2]}), LoadDataPaths(Path(sys.argv[3])))
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


def peak_bytes(kind, path, out):
    """Return the peak memory of a process that runs load-data; getrusage would include that of the parent."""
    command = [sys.executable, "-c", MEASURE, kind, path, out]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) * 1024


def images(count, size):
    """Return images whose first rows are random, which compress fast."""
    inputs = np.zeros((count, size, size), np.uint8)
    inputs[:, :2] = np.random.default_rng(0).integers(0, 4, (count, 2, size), dtype=np.uint8)
    return inputs, np.arange(count) % 10


def write_idx(folder, count, size):
    folder.mkdir()
    for prefix in ("train", "t10k"):
        for name, array in zip(("images-idx3", "labels-idx1"), images(count, size), strict=True):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            path = folder / f"{prefix}-{name}-ubyte.gz"
            path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes(), 1))


def write_one_set(path, count, size):
    inputs, targets = images(count, size)
    with path.open("wb") as file:
        np.savez(file, inputs=inputs.view("<f4"), targets=targets)


def write_two_sets(path, count, size):
    inputs, targets = images(count, size)
    with path.open("wb") as file:
        np.savez_compressed(file, x_train=inputs, y_train=targets, x_test=inputs[:99], y_test=targets[:99])


@pytest.fixture(scope="module")
def base_bytes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_one_set(folder / "data", 100, 8)
    return peak_bytes("npz", folder / "data", folder / "prepared")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("kind", "write", "count"),
    [("idx", write_idx, 3000), ("npz", write_one_set, 12_000), long("npz", write_two_sets, 12_000)],
)
def test_memory_of_load_data_is_at_most_1_2_times_the_data(tmp_path, base_bytes, kind, write, count):
    write(tmp_path / "data", count, 100)
    size = count * 100 * 100 * (2 if kind == "idx" else 1)

    peak = peak_bytes(kind, tmp_path / "data", tmp_path / "prepared")

    assert peak - base_bytes <= 1.2 * size


def normal(shape):
    return np.random.default_rng(1).normal(5, 2, shape)


STORED = {
    "float32 classes": (normal((3001, 785)).astype(np.float32), np.arange(3001) % 7),
    "float64 regression": (normal((5000, 3, 7)), normal((5000, 2))),
    "uint8 regression": (images(2000, 28)[0], normal((2000,))),
    "bool": (images(2000, 28)[0] > 1, np.arange(2000) % 3),
    "int32 regression": (images(300, 3)[0].astype(np.int32), normal((300, 1))),
    "uint64": (images(300, 3)[0].astype(np.uint64), np.arange(300) % 3),
    "one large sample": (normal((4, 1_100_000)).astype(np.float32), np.arange(4) // 2),
    "equal values": (np.full((300, 3), 0.1, np.float32), np.arange(300) % 3),
}


@pytest.mark.parametrize(("inputs", "targets"), STORED.values(), ids=STORED)
def test_blocks_do_not_change_the_prepared_data(tmp_path, inputs, targets):
    """The split is scikit-learn's, the normalization NumPy's, the file that of safetensors."""
    np.savez(tmp_path / "data.npz", inputs=inputs, targets=targets)
    inputs = inputs.astype(np.float32) if inputs.dtype == np.float64 else inputs
    targets = targets.astype(np.int64 if targets.dtype.kind == "i" else np.float32)
    classes = targets if targets.dtype.kind == "i" else None
    parts = train_test_split(
        inputs, targets, test_size=round(0.5 * len(inputs)), random_state=9, stratify=classes
    )

    source = Npz(kind="npz", path=str(tmp_path / "data.npz"))
    load_data(LoadDataConfig(source=source, valid_fraction=0.5, seed=9), LoadDataPaths(tmp_path))

    for name, x, y in (("train", *parts[::2]), ("valid", *parts[1::2])):
        expected = save({"inputs": torch.from_numpy(x), "targets": torch.from_numpy(y)})
        assert (tmp_path / f"{name}.safetensors").read_bytes() == expected
    normalization = json.loads((tmp_path / "dataset.json").read_text())["normalization"]
    assert normalization["mean"] == parts[0].mean(dtype=np.float64)
    assert normalization["std"] == (parts[0].std(dtype=np.float64) or 1.0)


@pytest.mark.parametrize(
    "inputs",
    [
        np.full((300, 3), 0.1, np.float32),
        np.zeros((7, 2, 2), np.uint8),
        np.full((1001, 3), 1_700_000_000_123_456_789, np.int64),
        np.arange(300)[:, None] % 2 + 2**60,
    ],
    ids=["float32", "zeros", "int64 of more than 53 bits", "equal in float64"],
)
def test_constant_inputs_have_a_standard_deviation_of_1(inputs):
    """Theirs is 0, or a rounding error if 64-bit integers are added, and no input can be divided by it."""
    arrays = data.Arrays(inputs, np.arange(len(inputs)) % 3)

    prepared = data.prepare(data.Splits(arrays, arrays))

    assert prepared.info.normalization.std == 1.0
    assert prepared.info.normalization.mean == pytest.approx(inputs.max(), rel=1e-15)


def test_nearly_equal_inputs_keep_their_standard_deviation():
    inputs = np.full((1000, 3), 1.0, np.float32)
    inputs[-1, -1] = np.nextafter(np.float32(1), np.float32(2))
    arrays = data.Arrays(inputs, np.arange(1000) % 3)

    normalization = data.prepare(data.Splits(arrays, arrays)).info.normalization

    assert normalization.std == inputs.std(dtype=np.float64) > 0


def test_class_in_the_valid_split_only_is_counted():
    """The model needs an output for it."""
    train = data.Arrays(np.zeros((4, 2)), np.array([0, 1, 0, 1]))
    valid = data.Arrays(np.zeros((3, 2)), np.array([0, 3, 3]))

    info = data.prepare(data.Splits(train, valid)).info

    assert info.num_classes == 4
    assert info.class_counts == {"train": [2, 2, 0, 0], "valid": [1, 0, 0, 2]}


def test_memory_order_of_axes_does_not_change_the_prepared_data(tmp_path):
    inputs, targets = normal((50_000, 33)).astype(np.float32), np.arange(50_000) % 3

    for name, array in (("C", inputs), ("F", np.asfortranarray(inputs))):
        np.savez(tmp_path / "data.npz", inputs=array, targets=targets)
        source = Npz(kind="npz", path=str(tmp_path / "data.npz"))
        load_data(LoadDataConfig(source=source), LoadDataPaths(tmp_path / name))

    files = ("dataset.json", "train.safetensors", "valid.safetensors")
    assert [(tmp_path / "C" / file).read_bytes() for file in files] == [
        (tmp_path / "F" / file).read_bytes() for file in files
    ]


def test_prepared_data_in_memory_equals_that_on_disk(tmp_path):
    arrays = data.Arrays(*STORED["float64 regression"])
    made = data.prepare(data.split(arrays, 0.2, 42))

    data.write(tmp_path, made)
    read = data.read(tmp_path)

    assert torch.equal(read.train.inputs, made.train.inputs)
    assert torch.equal(read.valid.targets, made.valid.targets)
    assert read.info.normalization == made.info.normalization


def test_description_has_the_hash_of_written_data_and_only_facts_that_the_data_has(tmp_path):
    made = data.prepare(data.split(data.Arrays(*STORED["float64 regression"]), 0.2, 42))
    data.write(tmp_path, made)

    written = json.loads((tmp_path / "dataset.json").read_text())

    assert (made.info.sha256, len(written["sha256"])) == ("", 64)
    assert written["num_classes"] is None
    assert (
        not {"class_names", "feature_names", "categories", "skipped", "tokenizer", "index"} & written.keys()
    )


@pytest.mark.parametrize(
    ("chunk_rows", "seed", "fraction", "counts"),
    covering_cases(
        [7, splits.CHUNK_ROWS],
        range(5),
        [0.1, 0.37, 0.5],
        [(2, 2), (10, 11, 12, 13), (500, 3, 40), (7,) * 9, (0, 50, 0, 51)],
    ),
)
def test_split_equals_that_of_scikit_learn(seed, fraction, counts, chunk_rows, monkeypatch):
    monkeypatch.setattr(splits, "CHUNK_ROWS", chunk_rows)
    classes = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    for targets, strata in ((classes, classes), (classes.astype(np.float32), None)):
        arrays = data.Arrays(np.arange(len(targets)), targets)
        valid = round(len(targets) * fraction)
        try:
            expected = train_test_split(arrays.inputs, test_size=valid, random_state=seed, stratify=strata)
        except ValueError:
            expected = None

        if expected is None:
            with pytest.raises(DataError, match="cannot be divided|an empty split"):
                data.split(arrays, fraction, seed)
        else:
            made = data.split(arrays, fraction, seed)
            assert made.train.inputs.tolist() == expected[0].tolist()
            assert made.valid.inputs.tolist() == expected[1].tolist()


def test_only_the_digits_need_scikit_learn(tmp_path):
    """Neither they nor torch are needed to convert an archive."""
    np.savez(tmp_path / "data.npz", inputs=np.zeros((20, 4)), targets=np.arange(20) % 2)
    program = MEASURE.replace("print(", "print({'sklearn', 'scipy', 'torch'} & set(sys.modules)) #")

    command = [sys.executable, "-c", program, "npz", tmp_path / "data.npz", tmp_path / "prepared"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("num_classes", "target_shape", "outputs"), [(None, (), 1), (None, (2, 3, 4), 24), (7, (), 7)]
)
def test_number_of_outputs_is_that_of_classes_or_targets(num_classes, target_shape, outputs):
    info = DatasetInfo(
        task="regression",
        input_shape=(4,),
        input_dtype="float32",
        target_shape=target_shape,
        num_classes=num_classes,
        counts={},
        class_counts=None,
        normalization={"mean": 0.0, "std": 1.0},
    )

    assert info.num_outputs == outputs


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of other systems")
def test_split_larger_than_the_memory_is_mapped(tmp_path):
    """The file is sparse. A page that a program changes is not written to it."""
    prepared = data.prepare(
        data.split(data.Arrays(np.zeros((8, 1 << 20), np.uint8), np.arange(8) % 2), 0.5, 1)
    )
    data.write(tmp_path, prepared)
    count = 4 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    path = tmp_path / "train.safetensors"
    shapes = ("targets", "I64", (count,), 8 * count), ("inputs", "U8", (count, 1 << 20), count << 20)
    header = pack_header({}, shapes)
    path.write_bytes(header + np.arange(count).tobytes())
    os.truncate(path, len(header) + 8 * count + (count << 20))

    train = data.read_split(tmp_path, "train")

    train.inputs[count - 1, 7] = 5
    inputs, targets = data.Samples.of(train.__getitems__([3, count - 1])), [3, count - 1]
    assert inputs.targets.tolist() == targets
    assert inputs.inputs[:, 7].tolist() == [0, 5]
    assert data.read_split(tmp_path, "train").inputs[count - 1, 7] == 0
