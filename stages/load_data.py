"""load-data: from a source to tensors on disk, with all that later stages must know of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from stages import data
from stages.contracts.config import Config
from stages.data.config import Digits, Source

VERSION = "1"


class LoadDataConfig(Config):
    """The section ``load_data``."""

    source: Source = Digits()
    """``digits``, ``idx``, ``npz``, or an import path."""
    valid_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The share of the samples that becomes the valid split, where the source has none of its own."""
    seed: int = 42
    """Of that split."""


@dataclass(frozen=True)
class Paths:
    """What the stage writes."""

    data: Path


def load_data(config: LoadDataConfig, paths: Paths) -> None:
    """Load the source, split it where it is not split, check it, and write it.

    Raises `DataError` for data that nothing can be trained on, and `PluginError` for a source that is
    not there.
    """
    loaded = data.load_source(config.source)
    if isinstance(loaded, data.Arrays):
        loaded = data.split(data.checked(loaded, "the data"), config.valid_fraction, config.seed)
    data.write(paths.data, data.prepare(loaded))
