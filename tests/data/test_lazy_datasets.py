"""Datasets whose samples are read when they are needed, by import path."""

import json
import re
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest
import torch
from long_tests import long
from stage_runs import load, read_outputs, train

from stages import data
from stages.contracts.errors import DataError
from stages.data import Arrays
from stages.models import ClassificationStep
from stages.params.fit_params import FitConfig

COUNT = 30
READ = []


class Squares:
    """A map-style dataset that draws a random number in each sample, as an augmentation does."""

    def __init__(self, noise=0.0, broken=None):
        self.noise = noise
        self.broken = broken

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        READ.append(index)
        image = np.random.default_rng(index).random((1, 8, 8)).astype(np.float32)
        mask = (image[0] > 0.5).astype(np.int64)
        image += self.noise * torch.rand(()).item()
        return image[:, :4] if index == self.broken else image, mask


class Typed(Squares):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __getitem__(self, index):
        image, mask = super().__getitem__(index)
        return (image * 100).astype(self.dtype), int(mask[0, 0])


def two_splits():
    return Squares(), Squares()


NAME = f"{__name__}:Squares"
SOURCE = {"kind": "dataset", "factory": NAME}
UNET = {"kind": "unet", "channels": [4, 8]}
FIT = {"augment": ["horizontal_flip"], "metrics": ["loss", {"kind": "mean_iou", "num_classes": 2}]}


def outputs_of(folder, **arguments):
    """Return the outputs of fit without the records of the trainer, which have the hash of the data."""
    files = read_outputs(train(folder, UNET, allowed=[NAME], **FIT, **arguments))
    return {name: content for name, content in files.items() if "trainer" not in name}


def test_run_of_samples_read_when_needed_is_that_of_tensors(tmp_path):
    for lazy in (False, True):
        load(tmp_path / str(lazy), SOURCE | {"lazy": lazy})

    assert outputs_of(tmp_path / "True") == outputs_of(tmp_path / "False")


def test_load_data_stores_no_sample_and_reading_a_split_reads_none(tmp_path):
    prepared = load(tmp_path, SOURCE | {"lazy": True})
    READ.clear()

    prepared = data.read(tmp_path / "data", allowed=[NAME])

    assert READ == []
    assert len(prepared.train) == prepared.info.counts["train"] == 22
    assert (tmp_path / "data/train.safetensors").stat().st_size < 22 * 64
    assert prepared.info.leaves["targets"].kind == "mask"


@pytest.mark.parametrize("steps", [2, long(5)])
def test_interrupted_run_with_workers_equals_an_uninterrupted_one(steps, tmp_path):
    """The random numbers of a sample depend on the epoch and its index."""
    source = SOURCE | {"lazy": True, "factory": {"kind": NAME, "noise": 0.3}}
    for name in ("whole", "resumed"):
        load(tmp_path / name, source)

    whole = train(tmp_path / "whole", UNET, allowed=[NAME], **FIT)
    resumed = train(tmp_path / "resumed", UNET, steps, [NAME], num_workers=2, **FIT)

    assert read_outputs(resumed) == read_outputs(whole)


def test_run_resumed_with_another_batch_size_is_that_of_tensors(tmp_path):
    """The batch size is part of the key, so the first run is not used."""
    for lazy in (False, True):
        load(tmp_path / str(lazy), SOURCE | {"lazy": lazy})
    train(tmp_path / "True", UNET, 2, [NAME], num_epochs=1, **FIT)
    rmtree(tmp_path / "True/artifacts")

    lazy, tensors = (outputs_of(tmp_path / name, num_epochs=1, batch_size=16) for name in ("True", "False"))

    assert lazy == tensors


SIDE = 512


class Photos:
    """Images of 256 KiB, each a part of one array of noise, so that 20 GB need no file."""

    def __init__(self, count):
        self.count = count
        self.noise = np.random.default_rng(0).integers(0, 255, SIDE * SIDE + count, dtype=np.uint8)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        pixels = self.noise[index : index + SIDE * SIDE] // 2 + 127 * (index % 2)
        return pixels.reshape(1, SIDE, SIDE).astype(np.uint8), index % 2


class Pooled(ClassificationStep, torch.nn.Sequential):
    def __init__(self, input_shape, num_classes):
        pool = torch.nn.AvgPool2d(input_shape[-1] // 4)
        super().__init__(pool, torch.nn.Flatten(), torch.nn.Linear(16, num_classes))


def read_memory(field):
    """Return a field of the memory of this process in bytes: VmRSS, or VmHWM, the peak."""
    return 1024 * int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1])


@pytest.mark.parametrize("count", [400, long(81_920)])
def test_memory_of_a_run_is_bounded_by_the_batch(count, tmp_path):
    """The samples have 100 MiB, and 20 GiB in the long case, whose index, hashes and logs are 0.5 kB each."""
    name = f"{__name__}:Photos"
    source = {"kind": "dataset", "factory": {"kind": name, "count": count}, "lazy": True}
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = read_memory("VmRSS")

    load(tmp_path, source)
    artifacts = train(
        tmp_path, f"{__name__}:Pooled", None, [name], num_epochs=1, batch_size=4, metrics=["loss", "accuracy"]
    )

    assert read_memory("VmHWM") - before < 80 * 2**20 + 512 * count
    assert json.loads((artifacts / "metrics.json").read_text())["valid"]["Accuracy"] == 100
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 2**20 + 128 * count


@pytest.mark.parametrize(("dtype", "reads"), [("uint8", 1), ("int16", 2), ("float32", 3)])
def test_number_of_times_that_load_data_reads_a_sample(dtype, reads, tmp_path):
    """The first pass hashes them, checks their values, adds integers, and keeps samples of 64 bytes."""
    source = {"kind": f"{__name__}:Typed", "dtype": dtype}
    READ.clear()

    prepared = load(tmp_path, {"kind": "dataset", "factory": source, "lazy": True})

    rows = prepared.train.rows.tolist()
    assert {READ.count(row) for row in rows[1:] if row} == {reads}  # sample 0 and the first one have one more
    expected = np.stack([Typed(dtype)[row][0] for row in rows])
    assert prepared.info.normalization.mean == np.mean(expected, dtype=np.float64)
    assert prepared.info.normalization.std == np.std(expected.astype(np.float64))


def test_splits_of_the_factory_are_kept(tmp_path):
    name = f"{__name__}:two_splits"

    prepared = load(tmp_path, {"kind": "dataset", "factory": name, "lazy": True})

    assert prepared.info.counts == {"train": COUNT, "valid": COUNT}


def test_code_that_is_not_named_in_params_is_not_run(tmp_path):
    load(tmp_path, SOURCE | {"lazy": True})

    with pytest.raises(DataError, match="names .*Squares, whose code is run only if load_data"):
        data.read(tmp_path / "data")


def test_sample_of_another_shape_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"the leaf 'inputs' of sample 3 has the shape \(1, 4, 8\)"):
        load(tmp_path, SOURCE | {"lazy": True, "factory": {"kind": NAME, "broken": 3}})


class Stream:
    """An iterable dataset, with the images of `Photos` or the samples of `Squares`."""

    def __init__(self, name, **arguments):
        self.samples = {"Photos": Photos, "Squares": Squares}[name](**arguments)

    def __iter__(self):
        return (self.samples[index] for index in range(len(self.samples)))


def stream(kind, **arguments):
    return {"kind": "dataset", "factory": {"kind": f"{__name__}:Stream", "name": kind, **arguments}}


def test_samples_of_an_iterable_dataset_are_stored_in_their_order(tmp_path):
    """They are read once, and without the dataset afterwards."""
    READ.clear()

    prepared = load(tmp_path, stream("Squares") | {"lazy": True})

    assert list(range(COUNT)) == READ
    rows = np.sort(data.split(Arrays(np.arange(COUNT)), 0.25, 42).valid.inputs)
    assert [prepared.valid[place][1].tolist() for place in range(len(rows))] == [
        Squares()[row][1].tolist() for row in rows.tolist()
    ]
    READ.clear()
    data.read(tmp_path / "data")
    assert READ == []


def map_and_stream():
    return Squares(), Stream("Squares")


def stream_and_map():
    return Stream("Squares"), Squares()


@pytest.mark.parametrize("factory", [map_and_stream, stream_and_map])
def test_all_splits_are_stored_if_one_is_iterable(factory, tmp_path):
    """The same description applies to each of them."""
    source = {"kind": "dataset", "factory": f"{__name__}:{factory.__name__}", "lazy": True}

    prepared = load(tmp_path, source)

    assert "factory" not in json.loads((tmp_path / "data/dataset.json").read_text())
    assert torch.equal(prepared.train.inputs, prepared.valid.inputs)
    assert torch.equal(prepared.train[7][0], torch.tensor(Squares()[7][0]))


@pytest.mark.long  # test_interrupted_run_with_workers_equals_an_uninterrupted_one
def test_interrupted_run_of_an_iterable_dataset_equals_an_uninterrupted_one(tmp_path):
    for name in ("whole", "resumed"):
        load(tmp_path / name, stream("Squares", noise=0.3) | {"lazy": True})

    whole = train(tmp_path / "whole", UNET, num_epochs=1, **FIT)
    resumed = train(tmp_path / "resumed", UNET, 2, num_epochs=1, num_workers=2, **FIT)

    assert read_outputs(resumed) == read_outputs(whole)


def test_memory_of_load_data_is_bounded_if_an_iterable_dataset_is_stored(tmp_path, monkeypatch):
    """The samples have 100 MiB; a split is mapped when it is read."""
    monkeypatch.chdir(tmp_path)
    source = stream("Photos", count=400) | {"lazy": True}
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = read_memory("VmRSS")

    load(tmp_path, source)

    assert read_memory("VmHWM") - before < 60 * 2**20
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


@pytest.mark.long  # test_memory_of_load_data_is_bounded_if_an_iterable_dataset_is_stored
def test_two_gigabytes_of_an_iterable_dataset_are_trained_in_bounded_memory(tmp_path, monkeypatch):
    """The pages of a mapped split are not memory of the process: the system drops them if it needs others."""
    monkeypatch.chdir(tmp_path)
    source = stream("Photos", count=8192) | {"lazy": True}
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    peak, anonymous = read_memory("VmRSS"), read_memory("RssAnon")

    load(tmp_path, source)
    assert read_memory("VmHWM") - peak < 100 * 2**20
    artifacts = train(
        tmp_path, f"{__name__}:Pooled", num_epochs=1, batch_size=16, metrics=["loss", "accuracy"]
    )

    assert read_memory("RssAnon") - anonymous < 256 * 2**20
    assert json.loads((artifacts / "metrics.json").read_text())["valid"]["Accuracy"] == 100
    assert (tmp_path / "data/train.safetensors").stat().st_size > 1.4 * 2**30
    rmtree(tmp_path / "data")


def nested(count=12):
    """Return samples that are a dict of inputs and a tuple of targets."""
    rows = [({"a": torch.full((2,), float(row)), "b": row % 3}, (row % 2, row / 2)) for row in range(count)]
    return torch.utils.data.StackDataset(rows) if count < 0 else Rows(rows)


class Rows(list):
    """A map-style dataset."""


@pytest.mark.parametrize("lazy", [False, True])
def test_samples_of_any_structure_are_stored(lazy, tmp_path):
    source = {"kind": "dataset", "factory": f"{__name__}:nested", "lazy": lazy}

    prepared = load(tmp_path, source)

    assert list(prepared.info.leaves) == ["inputs.a", "inputs.b", "targets.0", "targets.1"]
    inputs, targets = prepared.train[0]
    assert targets[0] == inputs["a"][0] % 2
    assert targets[1] == inputs["a"][0] / 2


def test_samples_have_the_splits_of_tensors(tmp_path):
    """They are stratified by the first leaf of classes."""
    source = {"kind": "dataset", "factory": {"kind": f"{__name__}:nested", "count": 40}}

    lazy, tensors = (load(tmp_path / str(lazy), source | {"lazy": lazy}) for lazy in (True, False))

    assert lazy.info.class_counts == tensors.info.class_counts
    assert lazy.info.class_counts["valid"]["0"] == [5, 5]
    assert [sample[1][1] for sample in lazy.valid] == tensors.valid.targets[1].tolist()


def test_description_names_the_factory(tmp_path):
    load(tmp_path, SOURCE | {"lazy": True, "factory": {"kind": NAME, "noise": 0.5}})

    content = json.loads((tmp_path / "data/dataset.json").read_text())

    assert content["factory"] == {"kind": NAME, "noise": 0.5}
    assert "lazy" not in FitConfig().key_params()
