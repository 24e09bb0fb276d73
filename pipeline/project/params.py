"""params.yaml as one model: a section for each stage, and the checks across sections."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError, model_validator
from pydantic_core import to_jsonable_python

from pipeline.project.snapshot import ABSENT, look_up
from pipeline.project.yaml_files import read_yaml
from stages.contracts.config import Config, Use
from stages.contracts.errors import ParamsError
from stages.contracts.fields import describe_lbfgs_conflict, describe_portable_optimizer_conflict
from stages.contracts.validation import describe_errors, format_value
from stages.create_artifact_dir import CreateArtifactDirConfig
from stages.load_data import LoadDataConfig
from stages.params.build_learner_params import BuildLearnerConfig
from stages.params.fit_params import FitConfig
from stages.params.save_model_params import SaveModelConfig

PARAMS = Path("params.yaml")


class Params(Config):
    """The content of params.yaml. A missing key has its default."""

    create_artifact_dir: CreateArtifactDirConfig = CreateArtifactDirConfig()
    load_data: LoadDataConfig = LoadDataConfig()
    build_learner: BuildLearnerConfig = BuildLearnerConfig()
    fit: FitConfig = FitConfig()
    save_model: SaveModelConfig = SaveModelConfig()

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.save_model.epoch == "best" and "loss" not in {use.kind for use in self.fit.metrics}:
            raise ValueError(
                "save_model.epoch is 'best', but fit.metrics has no 'loss'. Add loss to fit.metrics"
            )
        checkpoint = self.build_learner.checkpoint
        if checkpoint and checkpoint.epoch and checkpoint.epoch >= self.fit.num_epochs:
            raise ValueError(
                f"build_learner.checkpoint.epoch is {checkpoint.epoch}, but fit.num_epochs, which includes "
                f"the epochs before the checkpoint, is {self.fit.num_epochs}. Set it to a larger number"
            )
        conflict = describe_portable_optimizer_conflict(self.build_learner.optimizer.kind)
        if self.fit.portable and conflict:
            raise ValueError(conflict)
        device = self.fit.device  # that of "all" is known on the machine of the run only
        conflict = describe_lbfgs_conflict(
            self.fit.grads_accumulation.batches, 1 if isinstance(device, str) else len(device)
        )
        if self.build_learner.optimizer.kind == "lbfgs" and conflict:
            raise ValueError(conflict)
        return self


def read_params(path: Path = PARAMS) -> Params:
    """Return the params in *path*, with all defaults. Raises `ParamsError` with a line for each mistake."""
    return validate_params(read_yaml(path), path)


def list_params(path: Path = PARAMS) -> Iterator[tuple[str, Any, bool]]:
    """Yield all params in the order of their sections. Raises as `read_params` does.

    A param is its key with dots, its value as JSON has it, of the type that the stage receives, and whether
    params.yaml has it; otherwise the value is the default. The arguments of a part that is not built in are
    those that params.yaml has.
    """
    content = read_yaml(path)
    return _iterate(validate_params(content, path), content, "")


def _iterate(config: BaseModel, content: Any, prefix: str) -> Iterator[tuple[str, Any, bool]]:
    """Yield the params of *config*, whose keys begin with *prefix*, and are set in *content* or not."""
    for name, value in config:
        key = f"{prefix}{name}"
        found = look_up(content, name)
        if isinstance(value, BaseModel):
            is_bare = isinstance(found, str) and found is not ABSENT
            yield from _iterate(value, {"kind": found} if is_bare else found, f"{key}.")
        else:
            yield key, to_jsonable_python(value), found is not ABSENT


def validate_params(content: Any, path: Path) -> Params:
    """Return the params with *content*, which was read from *path*. Raises as `read_params` does."""
    if not content:
        names = ", ".join(Params.model_fields)
        raise ParamsError(f"{path} has no params. Write a section for each stage: {names}")
    if not isinstance(content, dict):
        raise ParamsError(f"{path} must have a section for each stage; found {format_value(content)}")
    sections = {key: {} if value is None else value for key, value in content.items()}
    try:
        return Params.model_validate(sections)
    except ValidationError as error:
        raise build_params_error(path, describe_errors(error, Params)) from error


def has_key(params: Params, key: str) -> bool:
    """Return whether *key*, with dots, is a param of *params*, or an argument of a part that they name."""
    *parents, name = key.split(".")
    value: Any = params
    for parent in parents:
        if not (isinstance(value, Config) and parent in type(value).model_fields):
            return False
        value = getattr(value, parent)
    return isinstance(value, Use) or (isinstance(value, Config) and name in type(value).model_fields)


def build_params_error(path: Path, mistakes: Iterable[str]) -> ParamsError:
    """Return the error for the *mistakes* in *path*; further lines of a mistake are indented."""
    lines = ["\n    ".join(map(str.strip, mistake.splitlines())) for mistake in mistakes]
    return ParamsError("\n  ".join([f"{path} is not valid:", *lines]))
