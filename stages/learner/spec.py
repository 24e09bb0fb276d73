"""The specification of a learner as a file, from which the same learner can be built anywhere."""

from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from stages.contracts.config import Config
from stages.contracts.errors import CheckpointError
from stages.contracts.files import write_text
from stages.contracts.seeds import derive_seed
from stages.contracts.text import to_json
from stages.models import ModelConfig, build_model
from stages.optim import OptimizerConfig, ScheduleConfig, Scheduler

SPEC_FILE = "learner.json"


class LearnerSpec(Config):
    """The content of ``learner.json``: the configs of a learner, and the shapes of its data."""

    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    input_shape: tuple[int, ...]
    """The shape of one sample."""
    num_classes: int | None
    """None for regression."""
    num_outputs: int
    """The number of values that the model predicts for one sample."""

    def build(self, seed: int) -> tuple[Any, OptimizerConfig, Scheduler]:
        """Return the arguments of `LearnerBuilder.build`: model, optimizer config and scheduler.

        The initial weights are drawn on the CPU from a generator seeded with *seed*.
        """
        torch.manual_seed(derive_seed(seed, "weights"))
        data_shape = {
            "input_shape": self.input_shape,
            "num_classes": self.num_classes,
            "num_outputs": self.num_outputs,
        }
        model = build_model(self.model, data_shape)
        return model, self.optimizer, Scheduler(self.optimizer.learning_rate, self.schedule)

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
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read ({error.strerror}): run `dvc repro --force build-learner`"
            ) from error
        except ValidationError as error:
            raise CheckpointError(
                f"{path} is invalid: {error.errors()[0]['msg']}. Run `dvc repro --force build-learner`"
            ) from error
