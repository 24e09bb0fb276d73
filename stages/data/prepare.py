"""From raw arrays to prepared data: checked, in the stored types, and described."""

import numpy as np
import torch

from stages.contracts.errors import DataError
from stages.data.checks import check, stored_inputs, stored_targets
from stages.data.datasets import TensorDataset
from stages.data.prepared import DatasetInfo, Normalization, Prepared
from stages.data.splits import Arrays, Splits


def checked(arrays: Arrays, where: str) -> Arrays:
    """Return *arrays* in the types in which they are stored; *where* names them in errors.

    Floats become float32, classes int64; other inputs keep their type, in native byte order. Raises
    `DataError` as `stages.data.checks.check` does.
    """
    arrays = check(arrays, where)
    return Arrays(
        arrays.inputs.astype(stored_inputs(arrays.inputs.dtype), copy=False),
        arrays.targets.astype(stored_targets(arrays.targets.dtype), copy=False),
        arrays.names,
    )


def prepare(splits: Splits) -> Prepared:
    """Return both splits as tensors, with their description. Raises `DataError` as `checked` does."""
    train, valid = (
        checked(splits.train, "the train split"),
        checked(splits.valid, "the valid split"),
    )
    for name in ("inputs", "targets"):
        one, other = getattr(train, name), getattr(valid, name)
        if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
            raise DataError(
                f"{name} of both splits must have the same type and shape per sample; found {one.dtype} of "
                f"shape {one.shape[1:]} in train and {other.dtype} of shape {other.shape[1:]} in valid; "
                "convert one of them"
            )
    classes = _num_classes(train, valid)
    info = DatasetInfo(
        task="regression" if classes is None else "classification",
        input_shape=train.inputs.shape[1:],
        input_dtype=str(train.inputs.dtype),
        target_shape=train.targets.shape[1:],
        num_classes=classes,
        counts={"train": len(train), "valid": len(valid)},
        class_counts=None
        if classes is None
        else {
            "train": np.bincount(train.targets, minlength=classes).tolist(),
            "valid": np.bincount(valid.targets, minlength=classes).tolist(),
        },
        normalization=_normalization(train.inputs),
    )
    return Prepared(info, dataset(train), dataset(valid))


def _num_classes(train: Arrays, valid: Arrays) -> int | None:
    if train.targets.dtype.kind == "f":
        return None
    if len(np.unique(train.targets)) == 1:
        raise DataError(
            f"the train split must have at least two classes; found one class only ({train.targets[0]}); "
            "add samples of other classes, or save float targets for regression"
        )
    return int(max(train.targets.max(), valid.targets.max())) + 1


def _normalization(inputs: np.ndarray) -> Normalization:
    """Return mean and standard deviation of all values, in float64; the latter is 1 if all are equal."""
    return Normalization(
        mean=float(inputs.mean(dtype=np.float64)), std=float(inputs.std(dtype=np.float64)) or 1.0
    )


def dataset(arrays: Arrays) -> TensorDataset:
    """Return checked *arrays* as a data set; the memory is shared if it is writable and contiguous."""
    return TensorDataset(_tensor(arrays.inputs), _tensor(arrays.targets))


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.require(array, requirements=["C_CONTIGUOUS", "WRITEABLE"]))
