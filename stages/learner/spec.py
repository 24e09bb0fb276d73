"""What a learner is made of, as a file: enough to make the same one again anywhere."""

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

BLUEPRINT = "learner.json"


class Blueprint(Config):
    """The content of ``learner.json``."""

    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    input_shape: tuple[int, ...]
    """Of one sample."""
    num_classes: int | None
    """None for regression."""
    num_outputs: int
    """How many numbers the model says for one sample."""

    def build(self, seed: int) -> tuple[Any, OptimizerConfig, Scheduler]:
        """What `LearnerBuilder.build` takes; the weights are drawn by *seed*, on the CPU."""
        torch.manual_seed(derive_seed(seed, "weights"))
        offered = {
            "input_shape": self.input_shape,
            "num_classes": self.num_classes,
            "num_outputs": self.num_outputs,
        }
        model = build_model(self.model, offered)
        return model, self.optimizer, Scheduler(self.optimizer.learning_rate, self.schedule)

    def write(self, directory: Path) -> None:
        """As ``learner.json`` in *directory*."""
        write_text(directory / BLUEPRINT, to_json(self.model_dump(mode="json")) + "\n")

    @classmethod
    def read(cls, directory: Path) -> "Blueprint":
        """The one in *directory*. Raises `CheckpointError` where there is none."""
        path = directory / BLUEPRINT
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read ({error.strerror}): run `dvc repro --force build-learner`"
            ) from error
        except ValidationError as error:
            raise CheckpointError(
                f"{path} is not what build-learner writes: {error.errors()[0]['msg']}"
            ) from error
