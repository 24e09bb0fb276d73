"""The source `dataset`: the samples of datasets of PyTorch as arrays."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from stages import data
from stages.contracts.config import Use
from stages.contracts.errors import DataError, PluginError
from stages.data.sources.torch_datasets import dataset

NAME = f"{__name__}:"


class Squares(Dataset):
    def __init__(self, count=12):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((2, 3), index, dtype=torch.uint8), index % 2


class Stream(IterableDataset):
    def __init__(self, count=12):
        self.samples = Squares(count)

    def __iter__(self):
        return (self.samples[index] for index in range(len(self.samples)))


def noise():
    return [(np.array([random.uniform(0, 1), np.random.rand(), float(torch.rand(()))]), 0.5)]  # noqa: S311


def pair(count):
    return Squares(count), Stream(4)


def by_name():
    inputs = torch.rand(4, 2, requires_grad=True)
    return {"train": TensorDataset(inputs, torch.zeros(4)), "test": Squares(2)}


@pytest.mark.parametrize("kind", ["Squares", "Stream"])
def test_samples_become_arrays(kind):
    arrays = dataset(Use(kind=NAME + kind, count=5))

    assert (arrays.inputs.shape, arrays.inputs.dtype) == ((5, 2, 3), np.uint8)
    assert arrays.inputs[:, 1, 2].tolist() == [0, 1, 2, 3, 4]
    assert arrays.targets.tolist() == [0, 1, 0, 1, 0]


def test_several_datasets_are_splits():
    splits = data.load_source(data.TorchDatasets(kind="dataset", factory={"kind": NAME + "pair", "count": 6}))

    assert {name: len(each) for name, each in splits.by_name().items()} == {"train": 6, "valid": 4}
    assert list(dataset(Use(kind=NAME + "by_name")).by_name()) == ["train", "test"]


def test_random_numbers_of_a_dataset_are_seeded_and_leave_the_generators_unchanged():
    state = torch.get_rng_state()

    first, second = (dataset(Use(kind=NAME + "noise")).inputs for _ in range(2))

    assert np.array_equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def draw_boxes(index):
    rows = torch.arange(4.0 * (index % 3)).reshape(-1, 4)
    return {"boxes": rows, "labels": torch.arange(len(rows)), "number": float(index)}


class Boxes(Squares):
    def __getitem__(self, index):
        return super().__getitem__(index)[0], draw_boxes(index)


class BoxStream(Stream):
    def __init__(self, count=12):
        self.samples = Boxes(count)


@pytest.mark.parametrize(("kind", "lazy"), [("Boxes", False), ("BoxStream", False), ("BoxStream", True)])
def test_boxes_and_the_rows_beside_them_are_ragged(kind, lazy):
    """They have the form of those of COCO: the first sample has none."""
    arrays = dataset(Use(kind=NAME + kind, count=5), lazy=lazy)

    targets = data.prepare(data.Splits(arrays, arrays)).train.targets
    assert targets["number"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    for index in range(5):
        expected = draw_boxes(index)
        assert all(torch.equal(targets[leaf][index], expected[leaf]) for leaf in ("boxes", "labels"))


def test_boxes_of_a_dataset_that_is_read_when_needed_are_refused():
    with pytest.raises(DataError, match="'targets.boxes' has a row for each box, .* Set .*lazy to false"):
        dataset(Use(kind=NAME + "Boxes"), lazy=True)


def lacking_labels():
    return [(np.zeros(2), draw_boxes(1)), (np.zeros(2), draw_boxes(2) | {"labels": torch.arange(1)})]


def uneven():
    return [(np.zeros(2), 0), (np.zeros(3), 1)]


def texts():
    return [("one", 0)]


def singles():
    return [5]


def empty():
    return []


def number():
    return 3


def misnamed():
    return {"training": Squares()}


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        (
            "uneven",
            DataError,
            r"uneven: the leaf 'inputs' of sample 1 has the shape \(3,\) .* sample 0 \(2,\) and float64",
        ),
        (
            "lacking_labels",
            DataError,
            "sample 1 has 2 rows in the leaf 'targets.boxes', but 1 in 'targets.labels'. Return a row",
        ),
        (
            "texts",
            DataError,
            "the leaf 'inputs' of sample 0 must be a tensor, an array or a number; found str",
        ),
        ("singles", DataError, "sample 0 must be an input and a target; found int"),
        ("empty", DataError, "has no samples"),
        ("number", PluginError, "must have __len__ and __getitem__, or __iter__; found int"),
        (
            "misnamed",
            PluginError,
            "with names of train, valid, test, of which train is required; found 1: train",
        ),
        ("absent", PluginError, "has no 'absent'"),
    ],
)
def test_unusable_datasets_are_rejected(kind, error, words):
    with pytest.raises(error, match=words):
        dataset(Use(kind=NAME + kind))
