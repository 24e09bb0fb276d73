"""Prepared data on disk: one safetensors file a split, and ``dataset.json`` that says what is in them."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from stages.contracts.config import Config
from stages.contracts.errors import DataError
from stages.contracts.files import write_text, written_whole
from stages.contracts.text import to_json
from stages.data.datasets import TensorDataset


class Normalization(Config):
    """What the batcher does to the inputs: ``(x - mean) / std``, both over the whole train split."""

    mean: float
    std: float


class DatasetInfo(Config):
    """The content of ``dataset.json``."""

    task: Literal["classification", "regression"]
    input_shape: tuple[int, ...]
    """Of one sample."""
    input_dtype: str
    target_shape: tuple[int, ...]
    """Of one sample; empty for a single number or class."""
    num_classes: int | None
    """None for regression."""
    counts: dict[str, int]
    """Samples in each split."""
    class_counts: dict[str, list[int]] | None
    """Samples of each class in each split; None for regression."""
    normalization: Normalization
    sha256: str = ""
    """Of the split files' content, train first."""

    @property
    def num_outputs(self) -> int:
        """How many numbers a model says for one sample."""
        if self.num_classes is not None:
            return self.num_classes
        size = 1
        for length in self.target_shape:
            size *= length
        return size


@dataclass(frozen=True)
class Prepared:
    """Both splits and what is known of them."""

    info: DatasetInfo
    train: TensorDataset
    valid: TensorDataset


def write(directory: Path, prepared: Prepared) -> None:
    """The split files in *directory*, then ``dataset.json``, in which the hash is filled in here."""
    digest = hashlib.sha256()
    for name, split in (("train", prepared.train), ("valid", prepared.valid)):
        content = save({"inputs": split.inputs, "targets": split.targets})
        digest.update(content)
        with written_whole(directory / f"{name}.safetensors") as file:
            file.write(content)
    info = prepared.info.model_copy(update={"sha256": digest.hexdigest()})
    write_text(directory / "dataset.json", to_json(info.model_dump(mode="json")) + "\n")


def read_info(path: Path) -> DatasetInfo:
    """What ``dataset.json`` at *path* says. Raises `DataError` where it is missing or not ours."""
    try:
        return DatasetInfo.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): run load-data first") from error
    except ValidationError as error:
        raise DataError(f"{path} is not what load-data writes: {error.errors()[0]['msg']}") from error


def read(directory: Path) -> Prepared:
    """Both splits in *directory*. Raises `DataError` where a file is missing or not whole."""
    info = read_info(directory / "dataset.json")
    return Prepared(info, _read_split(directory, "train"), _read_split(directory, "valid"))


def _read_split(directory: Path, name: str) -> TensorDataset:
    path = directory / f"{name}.safetensors"
    try:
        tensors = load_file(path)
        return TensorDataset(tensors["inputs"], tensors["targets"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): run load-data again") from error
