"""The file from which a learner can be built again: its configs, and the shapes of its data."""

from collections.abc import Collection, Iterator
from operator import not_
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, ValidationError

from stages.contracts import plugins
from stages.contracts.config import Config
from stages.contracts.errors import CheckpointError
from stages.contracts.fields import OPTIONAL, Decay, Patterns
from stages.contracts.text import to_json
from stages.devices.rng import derive_seed
from stages.models import ModelConfig, build_model, configure_loss
from stages.models import config as models
from stages.optim import (
    GroupedOptimizer,
    OptimizerConfig,
    ParameterGroup,
    ScheduleConfig,
    Scheduler,
    ScheduleUse,
    learning_rate_of,
    schedules,
)
from stages.optim import config as optimizers
from stages.runs.file_names import SPEC_FILE
from stages.system.files import read_regular, write_text

NO_CLASSES = (
    "num_classes is None, because the targets of the data are not integers or text. Convert them to integers "
    "from 0, or use a RegressionStep with num_outputs"
)
"""A note for an error of a model that takes a number of classes."""
ADD_TO_ALLOWED = "Read that code, and add the name to allowed if you trust it"
"""The end of the message about code that is not built in."""


class LearnerSpec(Config):
    """The content of ``learner.json``: the configs of a learner, and the shapes of its data."""

    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    input_shape: tuple[int, ...] | dict[str, tuple[int, ...]]
    """The shape of one sample, or the shapes of several inputs by their names."""
    num_classes: int | dict[str, int | None] | None
    """None for regression; by their names for several targets."""
    num_outputs: int | dict[str, int]
    """The number of values that the model predicts for one sample; by their names for several targets."""
    parameter_groups: tuple[ParameterGroup, ...] = Field(default=(), exclude_if=not_)
    freeze: Patterns = Field(default=(), exclude_if=not_)
    label_smoothing: Decay = Field(default=0.0, exclude_if=not_)
    class_weights: tuple[float, ...] | None = Field(default=None, exclude_if=not_)
    vocabulary_size: int | None = OPTIONAL
    """The number of ids of tokens in the data; None if its inputs are not tokens."""

    def build(self, seed: int) -> tuple[Any, OptimizerConfig | GroupedOptimizer, Scheduler | ScheduleUse]:
        """Return the arguments of `LearnerBuilder.build`: model, optimizer config and schedule.

        The initial weights are drawn on the CPU from a generator seeded with *seed*.
        """
        torch.manual_seed(derive_seed(seed, "weights"))
        data_shape = {
            "input_shape": self.input_shape,
            "num_classes": self.num_classes,
            "num_outputs": self.num_outputs,
            **({} if self.vocabulary_size is None else {"vocabulary_size": self.vocabulary_size}),
        }
        model = self._build_model(data_shape)
        if self.label_smoothing or self.class_weights:
            configure_loss(model, self.class_weights, self.label_smoothing)
        has_groups = self.parameter_groups or self.freeze
        grouped = GroupedOptimizer(self.optimizer, self.parameter_groups, self.freeze)
        schedule: Any = self.schedule
        if not isinstance(schedule, ScheduleUse):
            schedule = Scheduler(learning_rate_of(self.optimizer), schedule)
        return model, grouped if has_groups else self.optimizer, schedule

    def _build_model(self, data_shape: dict[str, Any]) -> Any:
        maker = plugins.find("model", self.model.kind, models.BUILT_IN)
        try:
            return build_model(self.model, data_shape)
        except Exception as error:
            if self.num_classes is None and "num_classes" in plugins.select_accepted(maker, data_shape):
                error.add_note(NO_CLASSES)
            raise

    def check_code(self, allowed: Collection[str] = (), remedy: str = ADD_TO_ALLOWED) -> None:
        """Raise `CheckpointError` if `build` would run code that is neither built in nor one of *allowed*.

        Call this for a ``learner.json`` of unknown origin. *allowed* has the kinds, and the import paths of
        functions, in the params of the project. The message ends with *remedy*.
        """
        parts = (
            (self.model, models.BUILT_IN),
            (self.optimizer, optimizers.BUILT_IN),
            (self.schedule, schedules.BUILT_IN),
        )
        kinds = {part.kind for part, built_in in parts if part.kind not in built_in}
        kinds |= set(_list_import_paths(self.model_dump(mode="json")))
        if others := sorted(kinds.difference(allowed)):
            raise CheckpointError(f"{SPEC_FILE} names {', '.join(others)}, which is not built in. {remedy}")

    def write(self, directory: Path) -> None:
        """Write ``learner.json`` to *directory*."""
        write_text(directory / SPEC_FILE, to_json(self.model_dump(mode="json")) + "\n")

    @classmethod
    def read(cls, directory: Path) -> "LearnerSpec":
        """Return the content of ``learner.json`` in *directory*.

        Raises `CheckpointError` if the file is missing or invalid.
        """
        path = directory / SPEC_FILE
        try:
            return cls.model_validate_json(read_regular(path))
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read ({error.strerror}): run `dvc repro --force build-learner`"
            ) from error
        except ValidationError as error:
            raise CheckpointError(
                f"{path} is invalid: {error.errors()[0]['msg']}. Run `dvc repro --force build-learner`"
            ) from error


def _list_import_paths(value: Any, key: str = "") -> Iterator[str]:
    """Yield each import path in *value*, plain data with the *key*, that `LearnerSpec.build` would follow."""
    if isinstance(value, dict):
        for name, element in value.items():
            yield from _list_import_paths(element, name)
    elif isinstance(value, list):
        for element in value:
            yield from _list_import_paths(element, key)
    elif key in ("kind", *schedules.FUNCTIONS) and isinstance(value, str) and ":" in value:
        yield value
