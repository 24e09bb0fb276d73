"""params.yaml as one model: a section a stage, and the checks that span two of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pydantic import ValidationError, model_validator

from pipeline.yaml_files import read_yaml
from stages.contracts.config import Config
from stages.contracts.errors import ParamsError
from stages.contracts.validation import describe_errors, format_value
from stages.create_artifact_dir import CreateArtifactDirConfig
from stages.load_data import LoadDataConfig
from stages.params.build_learner_params import BuildLearnerConfig
from stages.params.fit_params import FitConfig
from stages.save_model import SaveModelConfig


class Params(Config):
    """The whole of params.yaml. What it does not say has its default."""

    create_artifact_dir: CreateArtifactDirConfig = CreateArtifactDirConfig()
    load_data: LoadDataConfig = LoadDataConfig()
    build_learner: BuildLearnerConfig = BuildLearnerConfig()
    fit: FitConfig = FitConfig()
    save_model: SaveModelConfig = SaveModelConfig()

    @model_validator(mode="after")
    def _best_needs_loss(self) -> Self:
        if self.save_model.epoch == "best" and "loss" not in {use.kind for use in self.fit.metrics}:
            raise ValueError("save_model.epoch is 'best', so fit.metrics must have 'loss'")
        return self

    @model_validator(mode="after")
    def _epochs_are_left(self) -> Self:
        checkpoint = self.build_learner.checkpoint
        if checkpoint and checkpoint.epoch and checkpoint.epoch >= self.fit.num_epochs:
            raise ValueError(
                f"build_learner.checkpoint.epoch is {checkpoint.epoch}, and fit.num_epochs, which counts "
                f"the epochs before it too, is {self.fit.num_epochs}: it must be more"
            )
        return self


def read_params(path: Path = Path("params.yaml")) -> Params:
    """Return the params in *path*, with all defaults. Raises `ParamsError` with a line for each mistake."""
    content = read_yaml(path)
    if not content:
        names = ", ".join(Params.model_fields)
        raise ParamsError(f"{path} has no params. Write a section for each stage: {names}")
    if not isinstance(content, dict):
        raise ParamsError(f"{path} must have a section for each stage; found {format_value(content)}")
    sections = {key: {} if value is None else value for key, value in content.items()}
    try:
        return Params.model_validate(sections)
    except ValidationError as error:
        raise not_valid(path, describe_errors(error, Params)) from error


def not_valid(path: Path, mistakes: Iterable[str]) -> ParamsError:
    """Return the error for the *mistakes* in *path*; further lines of a mistake are indented."""
    lines = ["\n    ".join(map(str.strip, mistake.splitlines())) for mistake in mistakes]
    return ParamsError("\n  ".join([f"{path} is not valid:", *lines]))
