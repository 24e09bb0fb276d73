"""params.yaml as one model: a section a stage, and the checks that span two of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import BaseModel, ValidationError, model_validator

from pipeline.yaml_files import read_yaml
from stages.build_learner import BuildLearnerConfig
from stages.contracts.config import Config
from stages.contracts.errors import ParamsError, closest
from stages.create_artifact_dir import CreateArtifactDirConfig
from stages.fit import FitConfig
from stages.load_data import LoadDataConfig
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
    """What *path* says, with all defaults. Raises `ParamsError` with a line for each mistake."""
    raw = read_yaml(path)
    if isinstance(raw, dict):  # an empty section is one that leaves everything at its default
        raw = {key: {} if value is None else value for key, value in raw.items()}
    try:
        return Params.model_validate(raw)
    except ValidationError as error:
        lines = [f"  {_line(each['loc'], each)}" for each in error.errors()]
        raise ParamsError("\n".join([f"{path} is not valid:", *lines])) from error


def _line(location: tuple[int | str, ...], error: Any) -> str:
    keys, models = _walk(location)
    where = ".".join(map(str, keys)) or "as a whole"
    if error["type"] == "extra_forbidden" and models:
        known = list(models[-1].model_fields)
        return f"{where}: unknown key.{closest(str(keys[-1]), known)} Known: {', '.join(known)}"
    message = error["msg"].removeprefix("Value error, ")
    given = f" (it is {error['input']!r})" if isinstance(error["input"], str | int | float) else ""
    return f"{where}: {message}{given}"


def _walk(location: Sequence[int | str]) -> tuple[list[int | str], list[type[BaseModel]]]:
    """The keys in *location* without the tags that pydantic adds for unions, and the models on the way."""
    keys: list[int | str] = []
    models: list[type[BaseModel]] = [Params]
    options: dict[str, type[BaseModel]] = {}
    for part in location:
        if part in options:
            models.append(options[str(part)])
            options = {}
            continue
        keys.append(part)
        field = models[-1].model_fields.get(str(part))
        found = _models_in(field.annotation) if field else []
        if len(found) == 1:
            models.append(found[0])
        options = {_tag(model): model for model in found} if len(found) > 1 else {}
    return keys, models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in get_args(annotation) for model in _models_in(each)]


def _tag(model: type[BaseModel]) -> str:
    kinds = get_args(model.model_fields["kind"].annotation)
    return str(kinds[0]) if kinds else "use"
