"""Prepared data on disk: one safetensors file for each split, and ``dataset.json``, which describes them."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from stages.contracts.config import Config
from stages.contracts.errors import DataError
from stages.contracts.text import to_json
from stages.data.image_files import ImageFiles, ImageFormat
from stages.data.sources.columns import Column, Columns
from stages.data.splits import SPLIT_NAMES
from stages.system.files import open_atomic, write_text

DATASET_FILE = "dataset.json"
"""The description of the splits, in the directory of the prepared data and in that of the exports."""
_TYPES = {
    "uint64": "U64",
    "int64": "I64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "uint16": "U16",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""Stored types and their names in a safetensors file, in the order in which its tensors are written."""


class Normalization(Config):
    """The normalization of inputs, ``(x - mean) / std``, computed over the train split.

    Both are one number, or one for each channel: for each index of the first axis of a sample.
    """

    mean: float | tuple[float, ...]
    """The mean; the smallest value for ``min_max``; 0 for ``none``."""
    std: float | tuple[float, ...]
    """The standard deviation; the range of values for ``min_max``; 1 for ``none`` and for equal values."""


def is_none(value: object) -> bool:
    """Return whether *value* is a fact that the data does not have, which ``dataset.json`` leaves out."""
    return value is None


class DatasetInfo(Config):
    """The content of ``dataset.json``."""

    task: Literal["classification", "regression"]
    input_shape: tuple[int, ...]
    """The shape of one sample."""
    input_dtype: str
    target_shape: tuple[int, ...]
    """The shape of one target; empty for a single number or class."""
    num_classes: int | None
    """None for regression."""
    counts: dict[str, int]
    """The number of samples in each split: train, and those of valid and test that exist."""
    class_counts: dict[str, list[int]] | None
    """The number of samples of each class in each split, or of elements if each has a class; None for
    regression."""
    normalization: Normalization
    sha256: str = ""
    """The SHA-256 of the content of the split files: train, valid, test."""
    class_names: tuple[str, ...] | None = Field(default=None, exclude_if=is_none)
    """The names of the classes, if the source has names."""
    feature_names: tuple[str, ...] | None = Field(default=None, exclude_if=is_none)
    """The names of the features of a table, in their order in a sample."""
    categories: dict[str, tuple[str | None, ...]] | None = Field(default=None, exclude_if=is_none)
    """The categories of each categorical column of a table, in the order of their codes; None: missing."""
    feature_means: dict[str, float] | None = Field(default=None, exclude_if=is_none)
    """The mean of each column of numbers in a table, with which its missing values are filled."""
    skipped: int | None = Field(default=None, exclude_if=is_none)
    """The number of corrupt files, or of rows with missing values, that the source was set to leave out."""
    tokenizer: dict[str, Any] | None = Field(default=None, exclude_if=is_none)
    """The content of the ``tokenizer.json`` of texts; ``{"kind": "bytes"}`` for bytes."""
    vocabulary_size: int | None = Field(default=None, exclude_if=is_none)
    """The number of ids of tokens, with 0 for padding."""
    truncated: int | None = Field(default=None, exclude_if=is_none)
    """The number of texts that were cut."""
    index: ImageFormat | None = Field(default=None, exclude_if=is_none)
    """The form of images in files, of which the split files have an index; None for tensors."""

    @property
    def num_outputs(self) -> int:
        """The number of values that a model predicts for one sample."""
        if self.num_classes is not None:
            return self.num_classes
        size = 1
        for length in self.target_shape:
            size *= length
        return size


def write_columns(directory: Path, info: DatasetInfo, splits: Mapping[str, Columns]) -> None:
    """Write the split files to *directory*, then ``dataset.json`` with the hash of their content.

    The files of splits that an earlier call has written, and that *splits* lacks, are removed.
    """
    digest = hashlib.sha256()
    for name in set(SPLIT_NAMES) - set(splits):
        (directory / f"{name}.safetensors").unlink(missing_ok=True)
    for name, split in splits.items():
        with open_atomic(directory / f"{name}.safetensors") as file:
            for chunk in _encode(_select_columns(split)):
                digest.update(chunk)
                file.write(chunk)
    info = info.model_copy(update={"sha256": digest.hexdigest()})
    write_text(directory / DATASET_FILE, to_json(info.model_dump(mode="json")) + "\n")


def read_info(path: Path) -> DatasetInfo:
    """Return the content of ``dataset.json`` at *path*. Raises `DataError` if it is missing or invalid."""
    try:
        return DatasetInfo.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}). Run load-data first") from error
    except ValidationError as error:
        raise DataError(
            f"{path} was not written by load-data: {error.errors()[0]['msg']}. Run load-data again"
        ) from error


def _select_columns(split: Columns) -> dict[str, Column]:
    """Return the tensors of a split file by name: an index if the inputs are in files."""
    files: Any = split.inputs.array
    if not isinstance(files, ImageFiles):
        return {"inputs": split.inputs, "targets": split.targets}
    chosen = files if split.inputs.rows is None else files.select(split.inputs.rows)
    arrays = {name: Column(array, array.dtype) for name, array in chosen.to_arrays().items()}
    return arrays | {"targets": split.targets}


def _encode(columns: Mapping[str, Column]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file, as the reference implementation writes them."""
    ranks = list(_TYPES)
    names = sorted(columns, key=lambda name: (ranks.index(str(columns[name].dtype)), name))
    header, position = {}, 0
    for name in names:
        column = columns[name]
        end = position + math.prod(column.shape) * column.dtype.itemsize
        offsets = [position, end]
        header[name] = {
            "dtype": _TYPES[str(column.dtype)],
            "shape": list(column.shape),
            "data_offsets": offsets,
        }
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        for block in columns[name].blocks():
            yield block.astype(block.dtype.newbyteorder("<"), copy=False).data
