"""Data sets made of other data sets."""

import pytest

from stages.data import (
    ComposedDataset,
    MapperDataset,
    PartialDataset,
    SamplerDataset,
    SelectionDataset,
    ShuffledDataset,
    WindowsDataset,
)

LETTERS = "abcdef"


@pytest.mark.parametrize(
    ("dataset", "items"),
    [
        (SelectionDataset(LETTERS, [4, 0, 4]), ["e", "a", "e"]),
        (PartialDataset(LETTERS, 1, 3), ["b", "c"]),
        (PartialDataset(LETTERS, 4, 99), ["e", "f"]),
        (MapperDataset(LETTERS, str.upper), list("ABCDEF")),
        (ComposedDataset(["ab", "", "cde"]), list("abcde")),
        (ComposedDataset([]), []),
        (WindowsDataset(LETTERS, 5), [list("abcde"), list("bcdef")]),
        (WindowsDataset(LETTERS, 7), []),
    ],
)
def test_transform_has_the_expected_samples(dataset, items):
    assert [dataset[index] for index in range(len(dataset))] == items
    if items:
        assert dataset[-1] == items[-1]
    with pytest.raises(IndexError):
        dataset[len(items)]


def test_shuffled_dataset_has_every_sample_once_in_an_order_given_by_its_seed():
    one, same, other = (list(ShuffledDataset(range(50), seed)) for seed in (1, 1, 2))

    assert one == same != other
    assert sorted(one) == list(range(50))


def test_samples_repeat_only_with_replacement():
    drawn = [SamplerDataset(range(9), 9, 1, replacement=False)[i] for i in range(9)]
    again = [SamplerDataset(range(9), 99, 1)[i] for i in range(99)]

    assert sorted(drawn) == list(range(9))
    assert len(again) == 99
    assert set(again) == set(range(9))
    with pytest.raises(ValueError, match="size must be at most 9"):
        SamplerDataset(range(9), 10, 1, replacement=False)
