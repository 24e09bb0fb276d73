"""Prepared data: the splits as tensors in memory or as images in files, and their description."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from stages.contracts.errors import DataError
from stages.data.config import NormalizationConfig
from stages.data.datasets import ImageFileDataset, TensorDataset
from stages.data.image_files import ImageFiles, ImageFormat
from stages.data.sources.columns import Column, Columns, split_columns
from stages.data.splits import SPLIT_NAMES, Splits
from stages.data.storage import (
    DATASET_FILE,
    DEFAULT_NORMALIZATION,
    DatasetInfo,
    describe,
    read_info,
    write_columns,
)


@dataclass(frozen=True)
class Prepared:
    """The splits and their description."""

    info: DatasetInfo
    train: TensorDataset | ImageFileDataset
    valid: TensorDataset | ImageFileDataset | None = None
    test: TensorDataset | ImageFileDataset | None = None

    def by_name(self) -> dict[str, Any]:
        """Return the splits by name; None for one that there is not."""
        return {"train": self.train, "valid": self.valid, "test": self.test}


def prepare(splits: Splits, normalization: NormalizationConfig = DEFAULT_NORMALIZATION) -> Prepared:
    """Return the splits as tensors, with their description. Raises `DataError` as load-data does."""
    columns = split_columns(splits)
    info = describe(columns, normalization)
    return Prepared(info, **{name: dataset(column) for name, column in columns.items()})


def dataset(columns: Columns) -> TensorDataset:
    """Return *columns* as a dataset; it shares their memory if that is writable and needs no conversion."""
    return TensorDataset(_tensor(columns.inputs), _tensor(columns.targets))


def write(directory: Path, prepared: Prepared) -> None:
    """Write the split files to *directory*, then ``dataset.json`` with the hash of their content."""
    splits = prepared.by_name()
    write_columns(directory, prepared.info, {name: _columns(splits[name]) for name in prepared.info.counts})


def read(directory: Path, names: Collection[str] = SPLIT_NAMES) -> Prepared:
    """Return the train split in *directory*, and those of valid and test that exist and are in *names*.

    Raises `DataError` if a file is missing or not intact.
    """
    info = read_info(directory / DATASET_FILE)
    present = [name for name in info.counts if name in {"train", *names}]
    return Prepared(info, **{name: read_split(directory, name, info.index) for name in present})


def _tensor(column: Column) -> torch.Tensor:
    array = column.read(slice(0, len(column)))
    return torch.from_numpy(np.require(array, requirements=["C_CONTIGUOUS", "WRITEABLE"]))


def _columns(split: TensorDataset | ImageFileDataset) -> Columns:
    inputs: Any = split.files if isinstance(split, ImageFileDataset) else split.inputs.numpy()
    targets = split.targets.numpy()
    return Columns(Column(inputs, inputs.dtype), Column(targets, targets.dtype))


def read_split(
    directory: Path, name: str, index: ImageFormat | None = None
) -> TensorDataset | ImageFileDataset:
    """Return one split in *directory*: tensors, or images in the form of *index*, the field of `DatasetInfo`.

    Raises `DataError` if its file is missing or not intact.
    """
    path = directory / f"{name}.safetensors"
    try:
        tensors = load_file(path)
        if index is None:
            return TensorDataset(tensors["inputs"], tensors["targets"])
        arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
        return ImageFileDataset(ImageFiles.from_arrays(index, arrays), tensors["targets"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}). Run load-data again") from error
