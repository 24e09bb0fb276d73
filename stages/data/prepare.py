"""From raw arrays to what a learner is fed: checked, in the types that are kept, and described."""

import numpy as np
import torch

from stages.contracts.errors import DataError
from stages.data.datasets import TensorDataset
from stages.data.prepared import DatasetInfo, Normalization, Prepared
from stages.data.splits import Arrays, Splits


def checked(arrays: Arrays, where: str) -> Arrays:
    """*arrays* with inputs and targets of types that can be trained on; *where* names them in errors.

    Inputs stay as they are where torch has their type, float64 becomes float32; classes become int64,
    numbers float32. Raises `DataError` for what is empty, does not match or is no finite number.
    """
    inputs, targets = np.asarray(arrays.inputs), np.asarray(arrays.targets)
    if len(inputs) != len(targets):
        raise DataError(
            f"{where}: inputs and targets do not match in number: {len(inputs)} and {len(targets)}"
        )
    if not len(inputs):
        raise DataError(f"{where}: an empty split; there must be at least one sample")
    for name, array in (("inputs", inputs), ("targets", targets)):
        if array.dtype.kind not in "buif":
            raise DataError(f"{where}: {name} are of type {array.dtype}, and must be numbers")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DataError(f"{where}: {name} hold NaN or infinity")
    if targets.dtype.kind == "f":
        return Arrays(_narrowed(inputs), targets.astype(np.float32))
    if targets.ndim != 1 or targets.min() < 0:
        raise DataError(
            f"{where}: classes must be one whole number from 0 a sample; these are of shape "
            f"{targets.shape} and begin at {targets.min()} (floats are regression)"
        )
    return Arrays(_narrowed(inputs), targets.astype(np.int64))


def prepare(splits: Splits) -> Prepared:
    """Both splits as tensors, with what later stages must know. Raises `DataError` as `checked` does."""
    train, valid = (
        checked(splits.train, "the train split"),
        checked(splits.valid, "the valid split"),
    )
    for name in ("inputs", "targets"):
        one, other = getattr(train, name), getattr(valid, name)
        if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
            raise DataError(
                f"{name} of train are {one.dtype} of shape {one.shape[1:]} a sample, "
                f"of valid {other.dtype} of shape {other.shape[1:]}"
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
    return Prepared(info, _dataset(train), _dataset(valid))


def _num_classes(train: Arrays, valid: Arrays) -> int | None:
    if train.targets.dtype.kind == "f":
        return None
    if len(np.unique(train.targets)) == 1:
        raise DataError(
            f"the train split has one class only ({train.targets[0]}): there is nothing to tell apart"
        )
    return int(max(train.targets.max(), valid.targets.max())) + 1


def _normalization(inputs: np.ndarray) -> Normalization:
    """Over all numbers of *inputs*, in float64; inputs that are all equal are only centred."""
    return Normalization(
        mean=float(inputs.mean(dtype=np.float64)), std=float(inputs.std(dtype=np.float64)) or 1.0
    )


def _narrowed(inputs: np.ndarray) -> np.ndarray:
    return inputs.astype(np.float32) if inputs.dtype in (np.float64, np.float16) else inputs


def _dataset(arrays: Arrays) -> TensorDataset:
    return TensorDataset(
        torch.from_numpy(np.ascontiguousarray(arrays.inputs)),
        torch.from_numpy(np.ascontiguousarray(arrays.targets)),
    )
