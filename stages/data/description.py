"""The description of the splits: shapes, classes, counts and normalization."""

from collections.abc import Mapping

import numpy as np

from stages.contracts.errors import DataError
from stages.data.config import NormalizationConfig
from stages.data.normalization import compute_normalization
from stages.data.sources.columns import Column, Columns
from stages.data.storage import DatasetInfo

DEFAULT_NORMALIZATION = NormalizationConfig()


def describe(
    splits: Mapping[str, Columns], normalization: NormalizationConfig = DEFAULT_NORMALIZATION
) -> DatasetInfo:
    """Return the content of ``dataset.json`` for *splits*, by name, without the hash.

    *normalization* is computed over the train split; default: one mean and standard deviation of all values.
    Raises `DataError` if the splits do not match or the train split has fewer than two classes.
    """
    train = splits["train"]
    for name, split in splits.items():
        _check_match(name, train.inputs, split.inputs, "inputs")
        _check_match(name, train.targets, split.targets, "targets")
    is_regression = train.targets.dtype.kind == "f"
    counts = (
        None if is_regression else _class_counts({name: column.targets for name, column in splits.items()})
    )
    return DatasetInfo(
        task="regression" if counts is None else "classification",
        input_shape=train.inputs.shape[1:],
        input_dtype=str(train.inputs.dtype),
        target_shape=train.targets.shape[1:],
        num_classes=None if counts is None else len(counts["train"]),
        counts={name: len(split) for name, split in splits.items()},
        class_counts=counts,
        normalization=compute_normalization(train.inputs, normalization),
    )


def _check_match(split: str, train: Column, other: Column, name: str) -> None:
    if train.shape[1:] != other.shape[1:] or train.dtype != other.dtype:
        raise DataError(
            f"{name} of both splits must have the same type and shape per sample; found {train.dtype} of "
            f"shape {train.shape[1:]} in train and {other.dtype} of shape {other.shape[1:]} in {split}. "
            "Convert one of them"
        )


def _class_counts(splits: Mapping[str, Column]) -> dict[str, list[int]]:
    """Return the number of samples of each class in each split, or of elements if each has a class."""
    largest = max(int(block.max()) for column in splits.values() for block in column.blocks())
    classes = max(0, 1 + largest)  # 0 if all are ignored
    counts = {
        name: sum(
            (np.bincount(block[block >= 0], minlength=classes) for block in column.blocks()),
            np.zeros(classes, np.int64),
        )
        for name, column in splits.items()
    }
    present = np.flatnonzero(counts["train"])
    if len(present) < 2:
        labels = f"one class only ({present[0]})" if len(present) else "ignored targets only"
        raise DataError(
            f"the train split must have at least two classes; found {labels}. Add samples of other classes, "
            "or save float targets for regression"
        )
    return {name: numbers.tolist() for name, numbers in counts.items()}
