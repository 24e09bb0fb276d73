"""load-data: write the data of a source as tensors, with the description that later stages need."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from stages import data
from stages.contracts.config import Config
from stages.contracts.fields import Share, integer
from stages.data.config import Digits, NormalizationConfig, Source

VERSION = "3"


class LoadDataConfig(Config):
    """The section ``load_data``."""

    source: Source = Digits()
    """The data source: the import path of your own function with its arguments, or a kind. Arguments:

    * ``digits``: ``path: null``, which is not used
    * ``idx``: ``path``, a folder
    * ``npz``: ``path``, a file
    * ``npy``: ``inputs`` and ``targets``, two files
    """
    valid_fraction: Share = 0.2
    """Share of the samples for the valid split, if the source has no valid split."""
    seed: Annotated[int, integer(0, 2**32 - 1)] = 42
    """Seed of that split; NumPy accepts 0 to 2³² - 1."""
    normalization: NormalizationConfig = NormalizationConfig()
    """The numbers that inputs are normalized with, computed over the train split: ``kind: mean_std``,
    ``min_max`` or ``none``, and ``per: dataset`` or ``channel``. ``dataset.json`` contains them.
    """

    @model_serializer(mode="wrap")
    def _omit_unset(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields, without the normalization if it is the default."""
        is_default = self.normalization == NormalizationConfig()
        return {
            name: value for name, value in dump(self).items() if not (name == "normalization" and is_default)
        }


@dataclass(frozen=True)
class LoadDataPaths:
    """The paths that the stage writes."""

    data: Path


def load_data(config: LoadDataConfig, paths: LoadDataPaths) -> None:
    """Load the source, check it, split it if it has no valid split, and write it block by block.

    It needs the memory of the source's arrays and a few megabytes. Raises `DataError` if the data cannot be
    trained on, and `PluginError` if the source cannot be found.
    """
    loaded = data.load_source(config.source)
    if isinstance(loaded, data.Arrays):
        columns = data.to_columns(loaded, "the data")
        train, valid = data.split_columns(columns, config.valid_fraction, config.seed)
    else:
        train = data.to_columns(loaded.train, "the train split")
        valid = data.to_columns(loaded.valid, "the valid split")
    data.write_columns(paths.data, data.describe(train, valid, config.normalization), train, valid)
