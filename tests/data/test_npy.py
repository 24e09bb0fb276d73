"""The source `npy`: two arrays in files, which are mapped into memory."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from stages import data
from stages.contracts.errors import DataError
from stages.data import raw_arrays
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data

MEASURE = """
import sys
from pathlib import Path
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data
source = {"kind": "npy", "inputs": sys.argv[1], "targets": sys.argv[2]}
load_data(LoadDataConfig(source=source, valid_fraction=0.01), LoadDataPaths(Path(sys.argv[3])))
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


def save(folder, inputs, targets):
    """Write both arrays and return the source."""
    np.save(folder / "x.npy", inputs)
    np.save(folder / "y.npy", targets)
    return {"kind": "npy", "inputs": str(folder / "x.npy"), "targets": str(folder / "y.npy")}


def prepare(source, folder, **params):
    load_data(LoadDataConfig(source=source, **params), LoadDataPaths(folder))
    return {name: load_file(folder / f"{name}.safetensors") for name in ("train", "valid")}


@pytest.mark.parametrize("order", ["C", "F"])
def test_splits_have_the_samples_of_those_of_an_archive_in_their_order_in_the_file(
    tmp_path, order, monkeypatch
):
    monkeypatch.setattr(raw_arrays, "SPAN_BYTES", 1000)
    inputs, targets = np.arange(4000.0).reshape(1000, 4), np.arange(1000) % 3
    np.savez(tmp_path / "data.npz", inputs=inputs, targets=targets)
    source = save(tmp_path, np.asarray(inputs, order=order), targets)

    expected = prepare({"kind": "npz", "path": str(tmp_path / "data.npz")}, tmp_path / "npz")
    found = prepare(source, tmp_path / "npy")

    for name in ("train", "valid"):
        rows = expected[name]["inputs"][:, 0].argsort()
        assert np.array_equal(found[name]["inputs"], expected[name]["inputs"][rows])
        assert np.array_equal(found[name]["targets"], expected[name]["targets"][rows])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_of_load_data_does_not_grow_with_the_files(tmp_path):
    peaks = []
    for count in (1000, 40_000):
        rows = np.random.default_rng(0).integers(0, 255, (count, 4000), dtype=np.uint8)
        source = save(tmp_path, rows, np.arange(count) % 10)
        arguments = [source["inputs"], source["targets"], str(tmp_path / "prepared")]
        command = [sys.executable, "-c", MEASURE, *arguments]
        peaks.append(int(subprocess.run(command, capture_output=True, check=True).stdout) << 10)

    assert peaks[1] - peaks[0] <= 2 * raw_arrays.SPAN_BYTES


def test_mapped_arrays_can_be_used_without_the_pipeline(tmp_path):
    source = save(tmp_path, np.arange(40.0).reshape(20, 2), np.arange(20) % 2)

    prepared = data.prepare(data.split(data.load_source(data.Npy(**source)), 0.2, 42))

    assert prepared.info.counts == {"train": 16, "valid": 4}


def cut(folder):
    path = folder / "x.npy"
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (cut, "x.npy is truncated or corrupt: shape \\(20, 2\\) takes 320 bytes; found at most 319"),
        (lambda folder: (folder / "x.npy").unlink(), "load_data.source.inputs: there is no file"),
        (lambda folder: (folder / "y.npy").unlink(), "load_data.source.targets: there is no file"),
        (lambda folder: (folder / "x.npy").write_bytes(b"text"), "x.npy is not a NumPy array"),
        (
            lambda folder: np.save(folder / "x.npy", np.array([{}], dtype=object)),
            "x.npy must be numbers of at most 64 bits; found object",
        ),
        (
            lambda folder: np.save(folder / "y.npy", np.zeros(19)),
            "x.npy and .*y.npy must have the same number of samples; found 20 and 19",
        ),
    ],
)
def test_unusable_files_are_rejected_by_name(tmp_path, harm, words):
    source = save(tmp_path, np.zeros((20, 2)), np.arange(20) % 2)
    harm(tmp_path)

    with pytest.raises(DataError, match=words):
        prepare(source, tmp_path / "prepared")


def test_description_is_that_of_an_archive(tmp_path):
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(0, 255, (300, 2, 3), dtype=np.uint8), np.arange(300) % 3
    np.savez(tmp_path / "data.npz", inputs=inputs, targets=targets)

    prepare({"kind": "npz", "path": str(tmp_path / "data.npz")}, tmp_path / "npz")
    prepare(save(tmp_path, inputs, targets), tmp_path / "npy")

    infos = [json.loads((tmp_path / kind / "dataset.json").read_text()) for kind in ("npz", "npy")]
    for info in infos:
        del info["sha256"], info["normalization"]["std"]  # the sum of squares is rounded in another order
    assert infos[0] == infos[1]
