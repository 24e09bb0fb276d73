"""build-learner: the model with its first weights, its optimizer and its schedule, as records of epoch 0."""

from dataclasses import dataclass
from pathlib import Path

from stages import data, learner, renderers
from stages.contracts.config import Config
from stages.models.config import CnnConfig, ModelConfig
from stages.optim.config import Adam, OptimizerConfig
from stages.optim.schedules import Constant, ScheduleConfig

VERSION = "2"


class BuildLearnerConfig(Config):
    """The section ``build_learner``."""

    seed: int = 42
    """Of the first weights."""
    model: ModelConfig = CnnConfig()
    """``cnn``, ``mlp``, ``mlp_regressor``, or an import path."""
    optimizer: OptimizerConfig = Adam()
    """``adam``, ``adamw`` or ``sgd``, with the learning rate."""
    schedule: ScheduleConfig = Constant()
    """``constant``, ``linear`` or ``cosine``."""


@dataclass(frozen=True)
class Paths:
    """What the stage reads and writes."""

    dataset: Path
    learner: Path


def build_learner(config: BuildLearnerConfig, paths: Paths) -> None:
    """Write what `fit` starts from: ``learner.json`` and the records of epoch 0."""
    info = data.read_info(paths.dataset)
    blueprint = learner.Blueprint(
        model=config.model,
        optimizer=config.optimizer,
        schedule=config.schedule,
        input_shape=info.input_shape,
        num_classes=info.num_classes,
        num_outputs=info.num_outputs,
    )
    model, optimizer, scheduler = blueprint.build(config.seed)
    builder = learner.LearnerBuilder(paths.learner).renderer(renderers.PlainRenderer())
    builder = builder.devices(["cpu"]).with_file_checkpointer(learner.checkpoint_recorder())
    builder.build(model, optimizer, scheduler).save()
    blueprint.write(paths.learner)
