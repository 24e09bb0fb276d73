"""Paths of the stage fit, the arguments that come from its caller, and the part of the ranks other than 0."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages import data, distributed, learner
from stages.contracts.errors import RunInterruptedError
from stages.contracts.events import Interrupter, Renderer
from stages.contracts.seeds import derive_seed
from stages.loggers.tracking import RunDescription
from stages.params.fit_params import FitConfig


@dataclass(frozen=True)
class FitPaths:
    """The paths that the stage reads and writes."""

    artifacts: Path
    learner: Path
    """The directory that build-learner wrote."""
    data: Path
    checkpoint: Path
    train: Path
    valid: Path
    metrics: Path
    plots: Path
    iterations: Path
    """A directory in ``plots``, as ``confusion`` is a file in it."""
    confusion: Path
    runs: Path
    """The directory of the run stores."""

    @property
    def outputs(self) -> list[Path]:
        """The outputs that DVC tracks."""
        return [self.checkpoint, self.train, self.valid, self.plots, self.metrics]

    @property
    def telemetry_outputs(self) -> list[Path]:
        """The outputs with times in them, which DVC does not track."""
        return [self.artifacts / "telemetry", self.artifacts / "experiment.log"]


@dataclass(frozen=True)
class FitContext:
    """Arguments of the stage that come from its caller and not from params.yaml."""

    code: Mapping[str, Any] = field(default_factory=dict)
    """A hash for each further file that the run depends on, such as the code of the model."""
    recorded: str | None = None
    """The md5 of metrics.json in the run that dvc.lock records; None if it records none."""
    renderer: Renderer | None = None
    """Shows the run; None for the default of `LearnerBuilder`."""
    interrupter: Interrupter | None = None
    """Stops the run from outside."""
    group: "distributed.RankGroup" = field(default_factory=lambda: distributed.ONE_RANK)
    """The ranks that train together, of which this process is one; see `FitConfig.join_ranks`."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The params of all stages, for trackers."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Further facts about the run for trackers, such as the commit."""
    check_reads: Callable[[], None] = lambda: None
    """Raises an error, before the run is finished, if it has read a file that it does not depend on."""

    def configure(self, config: FitConfig, builder: "learner.LearnerBuilder") -> "learner.LearnerBuilder":
        """Set every option of *builder* that *config* and the caller have, and return it."""
        key = builder.directory.name
        config.configure(builder, RunDescription(key, self.params, {"run.key": key, **self.tags}))
        if self.interrupter:
            builder.with_interrupter(self.interrupter)
        return builder.renderer(self.renderer) if self.renderer else builder


def follow_main(config: FitConfig, paths: FitPaths, context: FitContext) -> None:
    """Train together with rank 0, which calls `fit` and owns the run store, until it has a result.

    Raises `RunInterruptedError` if the ranks were asked to stop, after rank 0 has saved the run, because
    torchrun kills the ranks of a host 30 seconds after one of them has exited.
    """
    config = config.model_copy(update={"loggers": ()})  # rank 0 logs
    while context.group.will_train():
        builder = context.configure(config, learner.LearnerBuilder(paths.runs)).checkpoint("auto")
        run = builder.build(*learner.LearnerSpec.read(paths.learner).build(config.seed))
        train, valid = config.build_loaders(data.read(paths.data, ["valid"]))
        run.fit(train, valid)
        if config.strategy == "fsdp":  # rank 0 cannot run the model without the other parts of it
            learner.confusion_cells(run, valid, derive_seed(config.seed, "confusion"))
        if run.interrupted:
            context.group.will_train()
            raise RunInterruptedError("stopped together with rank 0, which has saved the run")
