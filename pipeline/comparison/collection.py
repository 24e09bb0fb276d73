"""The collection of the runs to compare: params, metrics, curves and confusion matrix at a revision."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from shlex import quote
from typing import Any

from pipeline.comparison.runs import Comparison, MetricCurve, RunSummary, param_key
from pipeline.project.lockfile import (
    PARAMS_FILE,
    VERSION,
    VERSIONS_FILE,
    list_inputs,
    list_other_params,
)
from pipeline.project.paths import runs_root
from pipeline.project.revisions.files import RevisionFiles, read_runs
from stages.contracts.config import flatten
from stages.contracts.errors import StageError
from stages.contracts.history import Direction, Split
from stages.contracts.text import parse_number
from stages.runs.overview import read_durations

SAMPLE = re.compile(r".*/epoch-(\d+)/[^/]+-[1-9]\.(?:png|txt)")
MAX_SAMPLES = 16
"""Samples of a split of a run on the page."""
MAX_POINTS = 1000
"""Points of a curve of batches. A longer curve is thinned: more points could not be distinguished."""
_NAMES = {
    Direction.LOWEST: re.compile(
        r"loss|error|perplexity|deviance|brier|bouldin|ranked ?probability"
        r"|(?<![a-z0-9])(mae|mse|rmse|wer|cer)(?![a-z0-9])"
    ),
    Direction.HIGHEST: re.compile(
        r"accuracy|auroc|precision|recall|score|correlation|bleu|rouge|dice|ssim|psnr"
        r"|(?<![a-z0-9])(auc|f1|map|iou|r2)(?![a-z0-9])"
    ),
}
"""What implies a direction in the name of a metric: parts of it, and short words; the lowest come first."""
DurationsByMetrics = Mapping[str, Mapping[str, float]]
"""The md5 of metrics.json to the key of a run to its seconds."""
CurvePoint = tuple[int, float]
"""Epoch or step, and value."""
Cell = tuple[str | int, ...]
"""Actual class, predicted class and count; of a part of a matrix also the samples of the actual class."""


def collect_runs(revs: Sequence[str] | None = None) -> Comparison:
    """Return the comparison of the runs *revs*; None stands for the workspace and the experiments on HEAD.

    Raises as `read_runs` does, and `StageError` for a dvc.lock or params.yaml that cannot be parsed.
    """
    return summarize(read_runs(revs))


def summarize(revisions: Mapping[str, RevisionFiles]) -> Comparison:
    """Return the comparison of the runs *revisions*. A run's notes list what the cache lacks."""
    durations = read_durations(runs_root())
    runs = []
    for name, files in revisions.items():
        try:
            runs.append(_read_run(name, files, durations))
        except StageError as error:
            raise type(error)(f"run {name}: {error}") from error
    return Comparison(tuple(runs))


def find_duration(durations: DurationsByMetrics, metrics_md5: str | None) -> float | None:
    """Return the seconds of the run whose metrics.json has that md5; None unless exactly one run has it.

    *durations* come from records beside the run stores, because no tracked output depends on the clock.
    """
    seconds = list(durations.get(metrics_md5 or "", {}).values())
    return seconds[0] if len(seconds) == 1 else None


def _read_run(name: str, files: RevisionFiles, durations: DurationsByMetrics) -> RunSummary:
    params, notes = _params(files)
    metrics = read_epoch_curves(files)
    output = files.paths.get("metrics")
    cached = files.is_cached
    return RunSummary(
        name=name,
        sha=files.sha,
        params=params,
        inputs=_read_inputs(files.lock),
        metrics=metrics,
        epochs=max((max(curve.series) for curve in metrics.values()), default=None),
        seconds=find_duration(durations, files.hashes.get(output.as_posix())) if output else None,
        committed=files.committed,
        cached=cached,
        notes=(*notes, *_list_notes(files, cached=cached)),
    )


def _list_notes(files: RevisionFiles, *, cached: bool) -> Iterator[str]:
    if files.collision:
        yield (
            f"the experiment {files.collision!r} has the name of another revision and is listed by its SHA. "
            f"Run `dvc exp rename {quote(files.collision)} NEW_NAME`"
        )
    if files.damaged:
        paths = ", ".join(map(str, sorted(files.damaged)))
        yield f"damaged in the cache: {paths}. Run `learner doctor --deep --fix` to remove it"
    elif files.lock and not cached:
        command = "`dvc fetch --all-commits` or `dvc exp pull`" if files.sha else "`dvc fetch` or `dvc repro`"
        yield f"not all outputs are in the cache. Run {command}"


def _params(files: RevisionFiles) -> tuple[dict[str, Any], list[str]]:
    """Return the params that the stages ran with, and notes about them."""
    now = files.read_tracked(PARAMS_FILE)
    sections: dict[str, Any] = {}
    # create-artifact-dir depends on all of params.yaml, so the entries of the other stages are newer
    stages = sorted(files.lock, key=lambda name: name != "create-artifact-dir")
    for name in stages:
        sections |= files.lock[name].get("params", {}).get(PARAMS_FILE, {})
    others = _read_other_params(files.lock)
    if not sections:
        return flatten(now) | others, ["no stage has run: dvc.lock has no params"] if not others else []
    ran, planned = flatten(sections), flatten(now)
    edited = [key for key in {**ran, **planned} if param_key(ran.get(key)) != param_key(planned.get(key))]
    notes = [f"{PARAMS_FILE} was edited since: {', '.join(edited)}"] if edited else []
    return ran | others, notes


def _read_other_params(lock: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of files other than params.yaml, by names as in ``data.yaml:scale``.

    The versions of the stages are not among them.
    """
    return {
        f"{name}:{key}": value
        for name, values in list_other_params(lock.values())
        for key, value in flatten(values).items()
    }


def _read_inputs(lock: Mapping[str, Any]) -> str:
    """Return a text with the versions of the stages, and the hash of each input that no stage has written."""
    params = [pair for stage in lock.values() for pair in stage.get("params", {}).items()]
    versions = {name: values for name, values in params if name == VERSIONS_FILE or VERSION in values}
    return json.dumps([list_inputs(lock.values()), versions], sort_keys=True, default=str)


@dataclass(frozen=True)
class PlotData:
    """The data of the plots of one run, other than its epoch curves; empty if it is not cached."""

    iterations: Mapping[str, Sequence[CurvePoint]] = field(default_factory=dict)
    """By ``split/metric``, each step from 0 and its value."""
    confusion: Sequence[Cell] = ()
    samples: Mapping[str, bytes] = field(default_factory=dict)
    """The samples of the last epoch that has some, by ``split/epoch-<n>/file``: PNG or text."""


def read_epoch_curves(files: RevisionFiles) -> dict[str, MetricCurve]:
    """Return every metric with an epoch curve, by ``split/metric``; empty if the curves are not cached."""
    if "plots" not in files.paths:
        return {}
    curves = {}
    for path in files.below(files.paths["plots"]):
        if path.parent == files.paths["plots"] and path.suffix == ".tsv":
            for curve in _epoch_curves(path, files.read(path)):
                curves[curve.name] = curve
    return curves


@dataclass(frozen=True)
class PlotReader(Mapping[str, PlotData]):
    """The plot data of each run in *revisions*, by its name, which each access reads."""

    revisions: Mapping[str, RevisionFiles]

    def __getitem__(self, name: str) -> PlotData:
        files = self.revisions[name]
        confusion = files.read(files.paths["confusion"]) if "confusion" in files.paths else ""
        return PlotData(read_iterations(files), parse_matrix(confusion), read_samples(files))

    def __iter__(self) -> Iterator[str]:
        return iter(self.revisions)

    def __len__(self) -> int:
        return len(self.revisions)


def read_samples(files: RevisionFiles) -> dict[str, bytes]:
    """Return the content of the samples of the last epoch of each split that has some: see `PlotData`."""
    samples: dict[str, bytes] = {}
    for split in Split if "train" in files.paths and "valid" in files.paths else ():
        matches = [(SAMPLE.fullmatch(path.as_posix()), path) for path in files.below(files.paths[split])]
        epochs = [(int(match[1]), path) for match, path in matches if match]
        last = max((epoch for epoch, _ in epochs), default=0)
        for path in [path for epoch, path in epochs if epoch == last][:MAX_SAMPLES]:
            samples[f"{split}/{path.parent.name}/{path.name}"] = files.read_bytes(path)
    return samples


def read_iterations(
    files: RevisionFiles, names: Collection[str] | None = None
) -> dict[str, list[CurvePoint]]:
    """Return the values of batches by ``split/metric``, for *names* or all; at most `MAX_POINTS` of each."""
    iterations = {}
    for split in Split if "iterations" in files.paths else ():
        for path in files.below(files.paths["iterations"] / split):
            name = f"{split}/{_metric_of(path)}"
            if names is None or name in names:
                iterations[name] = thin(list(_batch_points(files.read(path))))
    return {name: points for name, points in iterations.items() if points}


def direction_of(metric: str) -> Direction | None:
    """Return which values of *metric* are better, judged by its name, since no output records it.

    None if the name implies no direction, such as that of a learning rate.
    """
    name = metric.casefold()
    return next((direction for direction, pattern in _NAMES.items() if pattern.search(name)), None)


def thin(points: Sequence[CurvePoint], limit: int = MAX_POINTS) -> list[CurvePoint]:
    """Return at most *limit* of *points*: those whose step is a multiple of a power of two."""
    steps = set(thin_steps([step for step, _ in points], limit))
    return [point for point in points if point[0] in steps]


def thin_steps(steps: Sequence[int], limit: int) -> list[int]:
    """Return at most *limit* of *steps*: the multiples of a power of two, which all runs have in common."""
    stride, remaining = 1, list(steps)
    while len(remaining) > limit:
        stride *= 2
        remaining = [step for step in remaining if step % stride == 0]
    return remaining


def parse_matrix(text: str) -> Sequence[Cell]:
    """Return the cells of a TSV to show."""
    table = _columns(text)
    cells = list(zip(*(table.get(name, ()) for name in ("actual", "predicted", "count")), strict=False))
    counted = [(*cell[:2], int(cell[2])) for cell in cells if cell[2].isdecimal()]
    samples = table.get("class_samples")
    if samples is None or len(counted) < len(cells) or not all(map(str.isdecimal, samples)):
        return counted
    return [(*cell, int(number)) for cell, number in zip(counted, samples, strict=True)]


def _epoch_curves(path: Path, text: str) -> Iterator[MetricCurve]:
    metric = _metric_of(path)
    table = _columns(text)
    epochs = [int(cell) if cell.isdecimal() else None for cell in table.get("epoch", ())]
    for split in Split:
        values = map(parse_number, table.get(split, ()))
        points = zip(epochs, values, strict=False)
        series = {epoch: value for epoch, value in points if epoch is not None and value is not None}
        if series:
            yield MetricCurve(split.value, metric, series, direction_of(metric))


def _batch_points(text: str) -> Iterator[CurvePoint]:
    table = _columns(text)
    for step, cell in zip(table.get("step", ()), table.get("value", ()), strict=False):
        value = parse_number(cell)
        if step.isdecimal() and value is not None:
            yield int(step), value


def _metric_of(path: Path) -> str:
    """Return the name of the metric whose values are in the file *path*."""
    return path.stem.replace("_", " ")


def _columns(text: str) -> dict[str, Sequence[str]]:
    """Return the columns of a TSV with a header, by name; a missing cell is empty."""
    header, *lines = [line.split("\t") for line in text.splitlines()] or [[]]
    return dict(zip(header, zip_longest(*lines, fillvalue=""), strict=False))
