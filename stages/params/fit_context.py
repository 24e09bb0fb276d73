"""Paths of the stage fit, and the arguments that come from its caller."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages import distributed
from stages.contracts.events import Interrupter, Renderer


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
    """The ranks that train together, of which this process is one; see `join_ranks`."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The params of all stages, for trackers."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Further facts about the run for trackers, such as the commit."""
    check_reads: Callable[[], None] = lambda: None
    """Raises an error, before the run is finished, if it has read a file that it does not depend on."""
