"""Prepared data: the splits as tensors in memory or as images in files, and their description."""

import mmap
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from stages.contracts.config import Use
from stages.contracts.errors import DataError
from stages.data.config import NormalizationConfig
from stages.data.datasets import ImageFileDataset, TensorDataset
from stages.data.image_files import ImageFiles
from stages.data.sources.columns import Column, Columns, split_columns
from stages.data.sources.torch_datasets import LazyDataset, build_parts
from stages.data.splits import SPLIT_NAMES, Splits
from stages.data.storage import (
    DATASET_FILE,
    DEFAULT_NORMALIZATION,
    TYPES,
    DatasetInfo,
    describe,
    prefix_of,
    read_info,
    write_columns,
)
from stages.data.trees import ENDS, Ragged, Tree, map_leaves, unflatten
from stages.devices.rng import preserve_random_state
from stages.records.safetensors_format import read_entries

MAP_NORESERVE = 0x4000
"""The flag of Linux for memory that is not reserved, which `mmap` of Python lacks."""
PreparedSplit = TensorDataset | ImageFileDataset | LazyDataset


@dataclass(frozen=True)
class Prepared:
    """The splits and their description."""

    info: DatasetInfo
    train: PreparedSplit
    valid: PreparedSplit | None = None
    test: PreparedSplit | None = None

    def by_name(self) -> dict[str, Any]:
        """Return the splits by name; None for one that there is not."""
        return {"train": self.train, "valid": self.valid, "test": self.test}


def prepare(splits: Splits, normalization: NormalizationConfig = DEFAULT_NORMALIZATION) -> Prepared:
    """Return the splits as tensors, with their description. Raises `DataError` as load-data does."""
    columns = split_columns(splits)
    info = describe(columns, normalization)
    return Prepared(info, **{name: dataset(split) for name, split in columns.items()})


def dataset(columns: Columns) -> TensorDataset:
    """Return *columns* as a dataset; it shares their memory if that is writable and needs no conversion."""
    kinds = {name: column.kind for name, column in columns.leaves.items()}
    return TensorDataset(
        map_leaves(_tensor, columns.inputs), map_leaves(_tensor, columns.targets), kinds=kinds
    )


def write(directory: Path, prepared: Prepared) -> None:
    """Write the split files to *directory*, then ``dataset.json`` with the hash of their content."""
    splits = prepared.by_name()
    write_columns(directory, prepared.info, {name: _columns(splits[name]) for name in prepared.info.counts})


def read(directory: Path, names: Collection[str] = SPLIT_NAMES, *, allowed: Collection[str] = ()) -> Prepared:
    """Return the train split in *directory*, and those of valid and test that exist and are in *names*.

    *allowed* has the import paths of datasets whose code may be run to read samples when they are needed.
    Raises `DataError` if a file is missing or not intact, or names other code.
    """
    info = read_info(directory / DATASET_FILE)
    present = [name for name in info.counts if name in {"train", *names}]
    return Prepared(info, **{name: read_split(directory, name, info, allowed=allowed) for name in present})


def _tensor(column: Column) -> Any:
    if isinstance(column.array, Ragged):
        rows = column.to_ragged()
        return replace(rows, values=torch.from_numpy(rows.values))
    array = column.read(slice(0, len(column)))
    return torch.from_numpy(np.require(array, requirements=["C_CONTIGUOUS", "WRITEABLE"]))


def _columns(split: TensorDataset | ImageFileDataset) -> Columns:
    inputs = split.files if isinstance(split, ImageFileDataset) else split.inputs
    return Columns(map_leaves(_column, inputs), map_leaves(_column, split.targets))


def _column(leaf: Any) -> Column:
    """Return a leaf of a dataset as a column."""
    if isinstance(leaf, Ragged):
        leaf = replace(leaf, values=leaf.values.numpy())
    array = leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf
    return Column(array, array.dtype)


def read_split(
    directory: Path, name: str, info: DatasetInfo | None = None, *, allowed: Collection[str] = ()
) -> PreparedSplit:
    """Return one split in *directory*; *info* is its ``dataset.json``, if it was read already.

    *allowed* and the errors are those of `read`.
    """
    info = info or read_info(directory / DATASET_FILE)
    path = directory / f"{name}.safetensors"
    try:
        if info.factory is not None and info.leaves is not None:
            source = _build_source(info.factory, name, allowed, path)
            return LazyDataset(source, _load_tensors(path)["rows"], info.leaves)
        leaves = _read_leaves(_load_tensors(path), info)
        inputs, targets = unflatten(leaves, "inputs"), unflatten(leaves, "targets")
        if info.index is not None:
            return ImageFileDataset(inputs, targets, kinds=info.kinds)
        return TensorDataset(inputs, targets, kinds=info.kinds)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}). Run load-data again") from error


def _load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a split file, which are mapped into memory and may be larger than it."""
    try:
        return load_file(path)
    except RuntimeError:  # Linux refuses a mapping that may be changed if all of its pages would not fit
        if sys.platform != "linux":
            raise
    entries, start = read_entries(path)
    with path.open("rb") as file:
        flags, access = mmap.MAP_PRIVATE | MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        mapping = mmap.mmap(file.fileno(), 0, flags=flags, prot=access)
    numpy_types = {stored: name for name, stored in TYPES.items()}
    return {
        name: torch.from_numpy(
            np.ndarray(entry.shape, numpy_types[entry.dtype.upper()], mapping, start + entry.start)
        )
        for name, entry in entries.items()
    }


def _build_source(factory: Use, name: str, allowed: Collection[str], path: Path) -> Any:
    """Return the dataset with the samples of the split *name*. Raises `DataError` if it is not *allowed*."""
    if factory.kind not in allowed:
        raise DataError(
            f"{path.parent / DATASET_FILE} names {factory.kind}, whose code is run only if load_data in "
            "params.yaml names it too. Read that code, and add it there, or to allowed, if you trust it"
        )
    with preserve_random_state():
        parts = build_parts(factory)
    return parts.get(name, parts.get("train", parts.get("")))


def _read_leaves(tensors: Mapping[str, torch.Tensor], info: DatasetInfo) -> dict[str, Tree]:
    """Return the leaves in the *tensors* of a split file by their names.

    Raises `KeyError` if one is missing.
    """
    leaves: dict[str, Tree] = {}
    for name in info.leaves or ("inputs", "targets"):
        if form := info.formats.get(name):
            prefix = prefix_of(name)
            arrays = {key.removeprefix(prefix): tensor.numpy() for key, tensor in tensors.items()}
            leaves[name] = ImageFiles.from_arrays(form, arrays)
        elif (ends := tensors.get(f"{name}{ENDS}")) is not None:
            leaves[name] = Ragged(tensors[name], ends.numpy())
        else:
            leaves[name] = tensors[name]
    return leaves
