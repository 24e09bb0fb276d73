"""Division of data into train, valid and test."""

import json
from itertools import chain

import numpy as np
import pytest

from stages import data
from stages.contracts.errors import DataError
from stages.data.config import Npz
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data

CLASSES = data.Arrays(np.arange(100), np.arange(100) % 4)


def samples(splits):
    return {name: set(arrays.inputs.tolist()) for name, arrays in splits.by_name().items()}


def class_counts(arrays):
    return np.bincount(arrays.targets).tolist()


def prepare(tmp_path, **options):
    config = LoadDataConfig(source=Npz(kind="npz", path=str(tmp_path / "data.npz")), **options)
    load_data(config, LoadDataPaths(tmp_path / "prepared"))
    return {path.name: path.read_bytes() for path in (tmp_path / "prepared").iterdir()}


def save(tmp_path, arrays=CLASSES):
    np.savez(tmp_path / "data.npz", inputs=arrays.inputs, targets=arrays.targets)


@pytest.mark.parametrize("targets", [CLASSES.targets, CLASSES.targets.astype(np.float32)])
def test_fractions_of_a_split_are_shares_of_all_samples(targets):
    made = samples(data.split(data.Arrays(CLASSES.inputs, targets), 0.2, 1, test_fraction=0.3))

    assert {name: len(each) for name, each in made.items()} == {"train": 50, "valid": 20, "test": 30}
    assert set.union(*made.values()) == set(range(100))


def test_every_split_has_the_same_proportion_of_each_class():
    made = data.split(CLASSES, 0.2, 1, test_fraction=0.4)

    assert class_counts(made.train) == class_counts(made.test) == [10] * 4
    assert class_counts(made.valid) == [5] * 4


def test_test_split_depends_on_the_seed_and_not_on_the_valid_fraction():
    def draw(seed, valid_fraction):
        return samples(data.split(CLASSES, valid_fraction, seed, test_fraction=0.2))["test"]

    assert draw(1, 0.2) == draw(1, 0.5)
    assert draw(1, 0.2) != draw(2, 0.2)


def test_prepared_data_has_a_test_split_only_if_there_is_one(tmp_path):
    save(tmp_path)

    with_test = prepare(tmp_path, test_fraction=0.2)
    without = prepare(tmp_path)

    assert json.loads(with_test["dataset.json"])["counts"] == {"train": 60, "valid": 20, "test": 20}
    assert set(with_test) - set(without) == {"test.safetensors"}


def test_split_of_the_source_is_not_drawn(tmp_path):
    own = {
        "x_train": CLASSES.inputs,
        "y_train": CLASSES.targets,
        "x_test": np.arange(8),
        "y_test": np.arange(8) % 4,
    }
    np.savez(tmp_path / "data.npz", **own)

    prepare(tmp_path, valid_fraction=0.5, test_fraction=0.2)

    prepared = data.read(tmp_path / "prepared")
    assert prepared.valid.inputs.tolist() == list(range(8))
    assert (len(prepared.train), len(prepared.test)) == (80, 20)


def test_split_that_is_not_named_is_not_read(tmp_path):
    save(tmp_path)
    prepare(tmp_path, test_fraction=0.2)

    prepared = data.read(tmp_path / "prepared", ["valid"])

    assert prepared.test is None
    assert data.read_split(tmp_path / "prepared", "test").inputs.shape == (20,)


def test_prepared_data_with_a_test_split_is_written_as_it_was_read(tmp_path):
    save(tmp_path)
    written = prepare(tmp_path, test_fraction=0.2)

    data.write(tmp_path / "copy", data.read(tmp_path / "prepared"))

    assert {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()} == written


@pytest.mark.parametrize(
    ("fractions", "words"),
    [
        ((0.6, 0.4), "test_fraction 0.4 and valid_fraction 0.6 of 100 samples leave 0 for train"),
        ((0.2, 0.001), "leave 80 for train and 0 for test and 20 for valid"),
        ((0.5, 0.48), "share 2 samples in train and 50 in valid. Add samples, or change load_data.valid"),
    ],
)
def test_fractions_that_leave_a_split_empty_are_rejected(fractions, words):
    valid, test = fractions

    with pytest.raises(DataError, match=words):
        data.split(CLASSES, valid, 1, test_fraction=test)


def test_test_split_of_another_shape_is_rejected():
    splits = data.Splits(CLASSES, CLASSES, data.Arrays(np.zeros((4, 2)), np.arange(4)))

    with pytest.raises(DataError, match="int64 of shape .* in train and float32 of shape .* in test"):
        data.prepare(splits)


def grouped(seed=0, count=60):
    generator = np.random.default_rng(seed)
    groups = np.repeat(np.arange(count), generator.integers(1, 8, count))
    targets = generator.integers(0, 3, count)[groups]
    return data.Arrays(groups, targets, groups=groups.astype(str))


@pytest.mark.parametrize("seed", range(5))
def test_samples_of_a_group_are_in_one_split_of_about_its_fraction(seed):
    arrays = grouped(seed)

    made = data.split(arrays, 0.2, seed, test_fraction=0.3)

    parts = samples(made)
    assert sum(len(each) for each in parts.values()) == len(set.union(*parts.values())) == 60
    for name, share in {"train": 0.5, "valid": 0.2, "test": 0.3}.items():
        counts = class_counts(made.by_name()[name])
        assert counts == pytest.approx(share * np.bincount(arrays.targets), abs=7)


def test_division_by_group_depends_on_the_seed():
    arrays = grouped()

    drawn = [samples(data.split(arrays, 0.2, seed))["valid"] for seed in (1, 1, 2)]

    assert drawn[0] == drawn[1] != drawn[2]


def test_groups_of_a_source_are_used_by_load_data():
    splits = data.split_columns(grouped(), {"valid": 0.2}, 1)

    expected = data.split(grouped(), 0.2, 1)
    assert splits["valid"].targets.read(slice(None)).tolist() == expected.valid.targets.tolist()


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (np.zeros(100), "1 groups cannot be divided by .*: the valid split would be empty"),
        (np.zeros(99), r"one label per sample, shape \(100,\); found shape \(99,\)"),
    ],
)
def test_groups_that_cannot_be_divided_are_rejected(groups, words):
    with pytest.raises(DataError, match=words):
        data.split(data.Arrays(CLASSES.inputs, CLASSES.targets, groups=groups), 0.2, 1)


@pytest.mark.parametrize(
    ("names", "drawn"), [(["train", "valid"], 0), (["train", "test"], 12), (["train"], 12)]
)
def test_named_splits_are_kept_and_missing_ones_drawn_from_train(names, drawn):
    named = np.array(names)[np.arange(60) % len(names)]
    arrays = data.Arrays(np.arange(60.0)[:, None], np.arange(60) % 3, splits=named)

    splits = data.split_columns(arrays, {"valid": 0.2 * len(names)}, seed=1)

    found = {name: columns.inputs.read(slice(None)).ravel().astype(int) for name, columns in splits.items()}
    assert sorted(np.concatenate(list(found.values()))) == list(range(60))
    for name in {"valid", "test"} & set(names):
        assert found[name].tolist() == np.flatnonzero(named == name).tolist()
    if "valid" not in names:
        assert len(found["valid"]) == drawn
        assert set(named[found["valid"]]) == {"train"}


def test_groups_stay_together_beside_a_named_split():
    named = np.where(np.arange(60) < 20, "test", "train")
    arrays = data.Arrays(np.arange(60.0)[:, None], np.arange(60) % 2, groups=np.arange(60) // 5, splits=named)

    splits = data.split(arrays, 0.3, 0)

    assert splits.test.inputs.ravel().tolist() == list(range(20))
    assert not set(splits.train.inputs.ravel() // 5) & set(splits.valid.inputs.ravel() // 5)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (["train"] * 59 + ["dev"], "must be train, valid or test.*found 'dev'"),
        (["test"] * 60, "no sample is in train"),
        (["train"], r"splits must have one label per sample, shape \(60,\); found shape \(1,\)"),
    ],
)
def test_unusable_names_of_splits_are_rejected(named, words):
    arrays = data.Arrays(np.zeros((60, 1)), np.arange(60) % 2, splits=np.array(named))

    with pytest.raises(DataError, match=words):
        data.split_columns(arrays)


def test_without_strata_a_class_of_one_sample_can_be_split(tmp_path):
    arrays = data.Arrays(np.zeros((20, 1)), np.array([0] * 18 + [1, 2]))
    with pytest.raises(DataError, match="cannot be divided so that every class is in both splits"):
        data.split(arrays, 0.2, 0)

    save(tmp_path, arrays)
    prepare(tmp_path, stratify=False)

    assert len(data.split(arrays, 0.2, 0, stratify=False).train) == 16
    assert data.read(tmp_path / "prepared").info.counts == {"train": 16, "valid": 4}


KINDS = {
    "classes": CLASSES,
    "classes of uneven sizes": data.Arrays(np.arange(103), np.arange(103) ** 2 % 7),
    "numbers": data.Arrays(np.arange(100), np.arange(100) / 7),
    "groups": data.Arrays(np.arange(100), np.arange(100) % 4, groups=np.arange(100) // 4),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("test_fraction", [0.0, 0.2])
def test_folds_are_disjoint_and_together_all_samples(kind, test_fraction):
    arrays = KINDS[kind]

    folds = [
        samples(data.split(arrays, data.Fold(index, 5), 1, test_fraction=test_fraction))
        for index in range(1, 6)
    ]

    test = folds[0].get("test", set())
    assert sorted(chain(test, *(fold["valid"] for fold in folds))) == list(range(len(arrays)))
    for fold in folds:
        assert fold.get("test", set()) == test
        assert fold["train"] == set(range(len(arrays))) - fold["valid"] - test


def test_folds_have_the_same_proportion_of_each_class_and_size():
    for index in range(1, 6):
        splits = data.split(CLASSES, data.Fold(index, 5), 1)
        assert (class_counts(splits.train), class_counts(splits.valid)) == ([20] * 4, [5] * 4)


def test_samples_of_a_group_are_in_one_fold():
    arrays = KINDS["groups"]

    splits = data.split(arrays, data.Fold(2, 5), 1)

    assert set(splits.train.inputs // 4).isdisjoint(splits.valid.inputs // 4)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (data.Arrays(np.arange(3), np.zeros(3)), "an empty split: folds 9 of 3 samples leaves 3 for train"),
        (data.Arrays(np.arange(20), np.arange(20) // 5), "Add samples, or change load_data.folds"),
        (
            data.Arrays(np.arange(20), np.zeros(20), groups=np.arange(20) // 5),
            "4 groups cannot be divided by load_data.test_fraction and valid_fraction, or folds",
        ),
    ],
)
def test_data_with_fewer_samples_or_groups_than_folds_is_refused(arrays, message):
    with pytest.raises(DataError, match=message):
        data.split(arrays, data.Fold(1, 9), 1)


def test_prepared_data_has_the_fold_of_params(tmp_path):
    save(tmp_path)

    prepare(tmp_path, folds=4, fold=2)

    valid = data.read(tmp_path / "prepared").valid
    assert valid.inputs.tolist() == data.split(CLASSES, data.Fold(2, 4), 42).valid.inputs.tolist()


@pytest.mark.parametrize("options", [{"folds": 1}, {"folds": 3, "fold": 4}, {"fold": 2}])
def test_fold_that_does_not_exist_is_refused(options):
    with pytest.raises(ValueError, match="folds must be at least 2 and fold; found folds"):
        LoadDataConfig(**options)


def test_folds_of_data_with_a_valid_split_are_refused(tmp_path):
    half = CLASSES.inputs[:50], CLASSES.targets[:50]
    np.savez(tmp_path / "data.npz", x_train=half[0], y_train=half[1], x_test=half[0], y_test=half[1])

    with pytest.raises(DataError, match="load_data.folds: the data has a valid split of its own"):
        prepare(tmp_path, folds=4)


def test_folds_are_in_the_params_of_a_run_only_if_there_are_any():
    assert {"folds", "fold"}.isdisjoint(LoadDataConfig().model_dump())
    assert LoadDataConfig(folds=3, fold=2).model_dump()["fold"] == 2


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (
            {"class_names": ("ant", "bee")},
            {"class_names": ("bee",)},
            "class_names must be ant, bee, .* found bee",
        ),
        (
            {"class_names": ("ant",)},
            {"class_names": ("ant", "bee")},
            "class_names must be ant, .* found ant, bee",
        ),
        (
            {"class_names": {"kind": ("ant", "bee"), "size": None}},
            {"class_names": {"kind": ("bee",)}},
            "found bee",
        ),
        (
            {"feature_names": ("a=x", "a=y")},
            {"feature_names": ("a=x", "a=z")},
            "feature_names must be a=x, a=y",
        ),
        ({"categories": {"a": ("x", "y")}}, {"categories": {"a": ("y", None)}}, "categories must be x, y"),
        ({"tokenizer": {"a": 1}}, {"tokenizer": {"b": 1}}, "the tokenizer must be that of the training data"),
    ],
)
def test_splits_that_number_names_differently_are_refused(train, test, message):
    """A source that reads one file numbers the classes of that file from 0."""
    parts = [data.Arrays(CLASSES.inputs, CLASSES.targets, facts=facts) for facts in (train, test)]

    with pytest.raises(DataError, match=f"the test split: .*{message}"):
        data.Splits(parts[0], test=parts[1])


def test_split_may_lack_the_last_classes():
    facts = [{"class_names": ("ant", "bee")}, {"class_names": ("ant",)}]
    parts = [data.Arrays(CLASSES.inputs, CLASSES.targets, facts=names) for names in facts]

    assert data.Splits(parts[0], test=parts[1]).test is parts[1]


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (
            CLASSES.inputs,
            CLASSES.targets[:-1],
            "inputs and targets must have the same number of sa",
        ),
        (
            {"a": CLASSES.inputs, "b": CLASSES.inputs[1:]},
            CLASSES.targets,
            "inputs and inputs.b must have the same number of sa",
        ),
    ],
)
def test_arrays_of_different_lengths_are_not_divided(inputs, targets, message):
    """The samples without a partner would be left out, or be in no split."""
    with pytest.raises(DataError, match=message):
        data.split(data.Arrays(inputs, targets), 0.2, 1)


@pytest.mark.parametrize(("index", "count"), [(0, 5), (6, 5), (1, 1), (1, 0)])
def test_number_of_a_fold_is_from_1_to_that_of_the_folds(index, count):
    with pytest.raises(DataError, match=rf"Fold\({index}, {count}\): pass a number of folds from 2"):
        data.Fold(index, count)
