"""The data that ``learner evaluate --source`` measures a model on."""

import numpy as np
import pytest

from pipeline.commands.training import _dataset
from stages.contracts.errors import DataError
from stages.data import Arrays
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data

NUMBERS = np.arange(12, dtype=np.float32)[:, None]


def named_splits():
    """Return a source whose samples name their splits."""
    splits = np.array(["train"] * 6 + ["test"] * 2 + ["valid"] * 4)
    return Arrays(NUMBERS, np.arange(12) % 2, splits=splits)


def all_classes():
    return Arrays(NUMBERS, np.arange(12) % 3, facts={"class_names": ("ant", "bee", "cat")})


def first_classes():
    return Arrays(NUMBERS, np.arange(12) % 2, facts={"class_names": ("ant", "bee")})


def last_classes():
    """Return a source without ants, whose bees have the number of ants in `all_classes`."""
    return Arrays(NUMBERS, np.arange(12) % 2, facts={"class_names": ("bee", "cat")})


def prepare(folder, source):
    params = {"source": f"{__name__}:{source.__name__}", "valid_fraction": 0}
    config = LoadDataConfig.model_validate(params)
    load_data(config, LoadDataPaths(folder))
    return folder


def test_only_the_test_split_of_a_source_that_names_splits_is_measured(tmp_path):
    measured = _dataset(prepare(tmp_path, all_classes), f"{__name__}:named_splits")

    assert measured.inputs.ravel().tolist() == [6, 7]


def test_source_that_numbers_classes_otherwise_is_refused(tmp_path):
    prepared = prepare(tmp_path, all_classes)

    assert len(_dataset(prepared, f"{__name__}:first_classes")) == 12
    with pytest.raises(
        DataError, match=r"class_names must be ant, bee, cat, as in the training data; found bee, cat"
    ):
        _dataset(prepared, f"{__name__}:last_classes")
