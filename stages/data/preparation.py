"""Prepared data in memory: both splits as tensors, and their description."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from stages.contracts.errors import DataError
from stages.data.columns import Column, Columns, to_columns
from stages.data.config import NormalizationConfig
from stages.data.datasets import TensorDataset
from stages.data.description import DEFAULT_NORMALIZATION, describe
from stages.data.splits import Splits
from stages.data.storage import DatasetInfo, read_info, write_columns


@dataclass(frozen=True)
class Prepared:
    """Both splits and their description."""

    info: DatasetInfo
    train: TensorDataset
    valid: TensorDataset


def prepare(splits: Splits, normalization: NormalizationConfig = DEFAULT_NORMALIZATION) -> Prepared:
    """Return both splits as tensors, with their description. Raises `DataError` as load-data does."""
    train = to_columns(splits.train, "the train split")
    valid = to_columns(splits.valid, "the valid split")
    return Prepared(describe(train, valid, normalization), dataset(train), dataset(valid))


def dataset(columns: Columns) -> TensorDataset:
    """Return *columns* as a dataset; it shares their memory if that is writable and needs no conversion."""
    return TensorDataset(_tensor(columns.inputs), _tensor(columns.targets))


def write(directory: Path, prepared: Prepared) -> None:
    """Write the split files to *directory*, then ``dataset.json`` with the hash of their content."""
    write_columns(directory, prepared.info, _columns(prepared.train), _columns(prepared.valid))


def read(directory: Path) -> Prepared:
    """Return both splits in *directory*. Raises `DataError` if a file is missing or not intact."""
    info = read_info(directory / "dataset.json")
    return Prepared(info, _read_split(directory, "train"), _read_split(directory, "valid"))


def _tensor(column: Column) -> torch.Tensor:
    array = column.read(slice(0, len(column)))
    return torch.from_numpy(np.require(array, requirements=["C_CONTIGUOUS", "WRITEABLE"]))


def _columns(split: TensorDataset) -> Columns:
    inputs, targets = split.inputs.numpy(), split.targets.numpy()
    return Columns(Column(inputs, inputs.dtype), Column(targets, targets.dtype))


def _read_split(directory: Path, name: str) -> TensorDataset:
    path = directory / f"{name}.safetensors"
    try:
        tensors = load_file(path)
        return TensorDataset(tensors["inputs"], tensors["targets"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}). Run load-data again") from error
