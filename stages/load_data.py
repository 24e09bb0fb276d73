"""load-data: write the data of a source as tensors, with the description that later stages need."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stages import data
from stages.contracts.config import Config
from stages.contracts.errors import DataError
from stages.contracts.fields import OPTIONAL, Count, Decay, Flag, integer
from stages.data.config import Digits, NormalizationConfig, Source

VERSION = "5"


class LoadDataConfig(Config):
    """The section ``load_data``."""

    source: Source = Digits()
    """The data source: a kind, or the import path of your own function with its arguments."""
    materialize: Literal["auto", "tensors", "index"] = "auto"
    """``tensors``, or ``index`` to leave images in their files; ``auto``: an index above 1 GiB of pixels."""
    valid_fraction: Decay = 0.2
    """Share of the samples for the valid split, if the source has no valid split; 0 to train without one."""
    test_fraction: Decay = 0.0
    """Share of the samples for the test split, if the source has no test split; 0 for none.

    ``save-model`` evaluates the model on it. It does not depend on ``valid_fraction``. Both are shares of all
    samples of a source without splits, or of the train split of the source.
    """
    folds: Count | None = OPTIONAL
    """Number of disjoint valid splits for cross-validation, of which ``fold`` is one; they replace
    ``valid_fraction``, and together are all samples but those of the test split. null: no folds.
    """
    fold: Count = Field(default=1, exclude_if=lambda fold: fold == 1)
    """The fold that is the valid split, from 1 to ``folds``; the others are the train split."""
    stratify: Flag = True
    """Whether each of these splits has the same proportion of every class."""
    seed: Annotated[int, integer(0, 2**32 - 1)] = 42
    """Seed of these splits; NumPy accepts 0 to 2³² - 1."""
    normalization: NormalizationConfig = NormalizationConfig()
    """The numbers that inputs are normalized with, computed over the train split: ``kind: mean_std``,
    ``min_max`` or ``none``, and ``per: dataset`` or ``channel``. ``dataset.json`` contains them.
    """

    @model_validator(mode="after")
    def _check_fold(self) -> Self:
        if self.folds == 1 or self.fold > (self.folds or 1):
            folds = "null" if self.folds is None else self.folds
            raise ValueError(f"folds must be at least 2 and fold; found folds {folds} and fold {self.fold}")
        return self


@dataclass(frozen=True)
class LoadDataPaths:
    """The paths that the stage writes."""

    data: Path


def load_data(config: LoadDataConfig, paths: LoadDataPaths) -> None:
    """Load the source, check it, draw the splits that it lacks, and write it block by block.

    It needs the memory of the source's arrays and a few megabytes. Raises `DataError` if the data cannot be
    trained on, and `PluginError` if the source cannot be found.
    """
    loaded = data.materialize(data.load_source(config.source), config.materialize)
    valid = config.valid_fraction
    if config.folds is not None:
        if data.has_valid_split(loaded):
            raise DataError(
                "load_data.folds: the data has a valid split of its own, which every fold would have. Remove "
                "that split from the source, or folds from params.yaml"
            )
        valid = data.Fold(config.fold, config.folds)
    fractions = {"test": config.test_fraction, "valid": valid}
    splits = data.split_columns(loaded, fractions, config.seed, stratify=config.stratify)
    facts = loaded.facts if isinstance(loaded, data.Arrays) else loaded.train.facts
    info = data.describe(splits, config.normalization).model_copy(update=facts)
    data.write_columns(paths.data, info, splits)
