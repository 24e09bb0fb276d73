"""The description of two splits: shapes, classes, counts and normalization."""

import numpy as np

from stages.contracts.errors import DataError
from stages.data.columns import Column, Columns
from stages.data.config import NormalizationConfig
from stages.data.normalization import compute_normalization
from stages.data.storage import DatasetInfo

DEFAULT_NORMALIZATION = NormalizationConfig()


def describe(
    train: Columns, valid: Columns, normalization: NormalizationConfig = DEFAULT_NORMALIZATION
) -> DatasetInfo:
    """Return the content of ``dataset.json`` for two splits, without the hash.

    *normalization* is computed over the train split; default: one mean and standard deviation of all values.
    Raises `DataError` if the splits do not match or the train split has one class only.
    """
    _check_match(train.inputs, valid.inputs, "inputs")
    _check_match(train.targets, valid.targets, "targets")
    is_regression = train.targets.dtype.kind == "f"
    counts = None if is_regression else _class_counts(train.targets, valid.targets)
    return DatasetInfo(
        task="regression" if counts is None else "classification",
        input_shape=train.inputs.shape[1:],
        input_dtype=str(train.inputs.dtype),
        target_shape=train.targets.shape[1:],
        num_classes=None if counts is None else len(counts["train"]),
        counts={"train": len(train), "valid": len(valid)},
        class_counts=counts,
        normalization=compute_normalization(train.inputs, normalization),
    )


def _check_match(train: Column, valid: Column, name: str) -> None:
    if train.shape[1:] != valid.shape[1:] or train.dtype != valid.dtype:
        raise DataError(
            f"{name} of both splits must have the same type and shape per sample; found {train.dtype} of "
            f"shape {train.shape[1:]} in train and {valid.dtype} of shape {valid.shape[1:]} in valid. "
            "Convert one of them"
        )


def _class_counts(train: Column, valid: Column) -> dict[str, list[int]]:
    """Return the number of samples of each class in each split."""
    classes = 1 + max(int(block.max()) for column in (train, valid) for block in column.blocks())
    in_train, in_valid = (
        sum((np.bincount(block, minlength=classes) for block in column.blocks()), np.zeros(classes, np.int64))
        for column in (train, valid)
    )
    if np.count_nonzero(in_train) == 1:
        raise DataError(
            f"the train split must have at least two classes; found one class only ({in_train.argmax()}). "
            "Add samples of other classes, or save float targets for regression"
        )
    return {"train": in_train.tolist(), "valid": in_valid.tolist()}
