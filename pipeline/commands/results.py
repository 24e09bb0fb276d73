"""The results of commands for programs: the field ``data`` of an envelope, and the events of a run.

``schemas/`` describes them as JSON Schema. `tests/shared/schema_files.py` writes it from these classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

Command = TypeVar("Command", bound=str)
Data = TypeVar("Data")
Number = float | Literal["NaN", "inf", "-inf"]
"""A number, or the text of one that JSON does not have."""


@dataclass(frozen=True)
class ErrorInfo:
    """The error of a command."""

    code: str
    """The class of the error, such as ``ParamsError``; ``ProblemsFound`` if *data* lists the problems."""
    message: str
    hint: str | None
    """What to do; None if the message has no such sentence."""


@dataclass(frozen=True)
class Envelope(Generic[Command, Data]):
    """What a command prints with ``--json``."""

    schema: Literal[1]
    """The version; raised if a field is removed, renamed or changes its type."""
    command: Command
    ok: bool
    """True if the exit code is 0."""
    data: Data | None
    """The result; None after an error, except for ``ProblemsFound``."""
    error: ErrorInfo | None


@dataclass(frozen=True)
class StageOutcomes:
    """The outcome of each stage: ``ran``, ``unchanged`` or ``restored from the run-cache``."""

    stages: Mapping[str, str]


@dataclass(frozen=True)
class Resumed:
    """A checkpoint from which training resumes, and the lines of params.yaml that differ."""

    commit: str
    epoch: int
    changes: Sequence[str]
    stages: Mapping[str, str]
    """The outcome of each stage; empty with ``--no-run``."""


@dataclass(frozen=True)
class Checked:
    """The result of the check of a project."""

    missing: Sequence[str]
    """A line for each dependency that dvc.yaml or the disk lacks, and each stage of another version."""
    fixed: Sequence[str]
    notes: Sequence[str]


@dataclass(frozen=True)
class ParamValue:
    """The value of a param."""

    value: Any
    is_default: bool


@dataclass(frozen=True)
class RunInfo:
    """A run store."""

    key: str
    path: str
    state: str
    stalled: bool
    pid: int | None
    host: str | None
    epochs: int
    """The number of finished epochs."""
    epoch: int | None
    split: str | None
    step: int | None
    time: str
    """The time of the last activity, ISO 8601."""
    size: int
    """Bytes."""
    age_seconds: float


@dataclass(frozen=True)
class RunDetails:
    """A run store, and how its key differs from that of the current params and inputs."""

    run: RunInfo
    entries: Mapping[str, Any]
    finished: Mapping[str, Any] | None
    current: str | None
    """The key of the current params and inputs; None if they cannot be read."""
    differences: Sequence[str] | None


@dataclass(frozen=True)
class StageState:
    """The state of a stage, according to DVC."""

    name: str
    version: str | None
    """None for a stage with a program of its own."""
    up_to_date: bool
    changed: Sequence[Any]
    """What DVC reports as changed."""


@dataclass(frozen=True)
class Status:
    """The state of a project."""

    stages: Sequence[StageState]
    checkpoints: Sequence[int]
    """The epochs of the published checkpoints."""
    runs: Sequence[RunInfo]


@dataclass(frozen=True)
class StageReasons:
    """Each reason for which a stage is out of date; none if it is up to date."""

    stage: str
    reasons: Sequence[str]


@dataclass(frozen=True)
class FileProblem:
    """A file, or a part of a run, that was verified."""

    name: str
    problem: str | None
    """What is wrong; None if it is intact."""
    run: str | None = None
    """The key of the run; None for a file without one."""


@dataclass(frozen=True)
class SummaryRow:
    """The lowest and the highest value of a metric on one split."""

    split: str
    metric: str
    min: Number
    min_epoch: int | None
    max: Number
    max_epoch: int | None


@dataclass(frozen=True)
class Summary:
    """The summary of a run."""

    epochs: int
    metrics: Sequence[SummaryRow]


@dataclass(frozen=True)
class MetricValues:
    """The value of each metric on a data set."""

    source: str
    metrics: Mapping[str, Number]


@dataclass(frozen=True)
class SampleFile:
    """Samples that were written to a file, or printed."""

    file: str | None
    split: str
    epochs: Sequence[int]
    samples: int


@dataclass(frozen=True)
class Written:
    """Files that a command has written."""

    files: Sequence[str]
    rows: int | None = None
    """The number of rows in the first of them; None for a file without rows."""


@dataclass(frozen=True)
class LearningRate:
    """The suggested learning rate, and the file of the curve."""

    suggestion: float
    file: str


@dataclass(frozen=True)
class ComparedMetric:
    """The curve of a metric of a run."""

    first: Number
    last: Number
    best: Number | None
    """None if no value is finite, or if the direction is unknown."""
    best_epoch: int | None
    better: Literal["highest", "lowest"] | None
    delta: Number | None
    """The difference of the best value to that of the baseline."""
    series: Mapping[str, Number]
    """The value by epoch."""
    deviation: Number | None = None
    """The standard deviation of repeats."""
    exceeds_noise: bool | None = None


@dataclass(frozen=True)
class ComparedRun:
    """A run in a comparison."""

    name: str
    sha: str | None
    params: Mapping[str, Any]
    metrics: Mapping[str, ComparedMetric]
    epochs: int | None
    """None if the metrics are not cached."""
    seconds: float | None
    committed: str | None
    cached: bool | None
    notes: Sequence[str]


@dataclass(frozen=True)
class ComparedRuns:
    """A comparison of runs."""

    first: str | None
    baseline: str | None
    differing: Sequence[str]
    """The params that differ."""
    runs: Sequence[ComparedRun]


@dataclass(frozen=True)
class SweepPoint:
    """A point of a sweep, and the name of its experiment."""

    name: str
    state: str
    """``done``, ``to run`` or ``stopped early``."""


@dataclass(frozen=True)
class Diagnosis:
    """A result of the doctor."""

    subject: str
    level: Literal["ok", "warning", "problem"]
    message: str
    remedy: str
    fixable: bool


@dataclass(frozen=True)
class NewProject:
    """A project that has been created."""

    folder: str
    template: str
    files: Sequence[str]
    """The files that git tracks, relative to the folder."""
    commit: str | None
    """None if git has refused the commit, for the reason in *notes*."""
    notes: Sequence[str]
    """The printed lines, such as the next commands."""


@dataclass(frozen=True)
class Versions:
    """The entries of versions.yaml: versions of stages, and hashes of code, by name."""

    versions: Mapping[str, str]
    replaced: Mapping[str, str | None]
    """The previous value of each entry that was out of date; None if it was missing."""


@dataclass(frozen=True)
class RemovedRuns:
    """The keys of run stores that have been removed."""

    removed: Sequence[str]


@dataclass(frozen=True)
class RecordContent:
    """The content of a record file."""

    file: str
    format: str
    size: int
    """Bytes."""
    metadata: Mapping[str, Any] | None
    extra: Mapping[str, Any] | None
    entries: Sequence[Mapping[str, Any]] | None
    """Name, dtype, shape and bytes of each tensor; None if the format stores no names."""
    tensors: int | None = None
    parameters: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class RecordDifferences:
    """The names at which two records differ."""

    equal: bool
    differences: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class StageEvent:
    """A stage that begins to run, or has ended."""

    stage: str
    state: str
    """``running``, or the outcome as in `StageOutcomes`."""


@dataclass(frozen=True)
class EpochEvent:
    """An epoch that has ended, after its metrics."""

    epoch: int
    epochs: int


@dataclass(frozen=True)
class MetricEvent:
    """The value of a metric over an epoch of a split."""

    epoch: int
    split: str
    metric: str
    value: Number


@dataclass(frozen=True)
class CheckpointEvent:
    """The checkpoint of an epoch that is on disk."""

    epoch: int


EVENTS = {
    "stage": StageEvent,
    "epoch": EpochEvent,
    "metric": MetricEvent,
    "checkpoint": CheckpointEvent,
    "end": Envelope,
}
"""The fields of each event beside ``event``, its name."""
