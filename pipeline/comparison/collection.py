"""The collection of the runs to compare, each read at its revision."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.comparison.curves import read_epoch_curves
from pipeline.comparison.runs import Comparison, RunSummary
from pipeline.project import runs_root
from pipeline.revisions.files import RevisionFiles, read_revisions
from stages.contracts.errors import StageError
from stages.contracts.files import md5
from stages.runs.durations import read_durations, working_seconds_of
from stages.runs.layout import stores

PARAMS = "params.yaml"


def collect_runs(revs: Sequence[str] | None = None) -> Comparison:
    """Return the comparison of the runs *revs*; None stands for the workspace and the experiments on HEAD.

    Raises as `read_revisions` does, and `StageError` for a dvc.lock or params.yaml that cannot be parsed.
    """
    return summarize(read_revisions(revs))


def summarize(revisions: Mapping[str, RevisionFiles]) -> Comparison:
    """Return the comparison of the runs *revisions*. A run's notes list what the cache lacks."""
    durations = Durations(runs_root())
    return Comparison(tuple(_summary(name, files, durations) for name, files in revisions.items()))


class Durations:
    """The durations of the runs whose stores are or were below *root*, by the hash of their metrics.

    They come from records beside the run stores, because no tracked output depends on the clock.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def seconds(self, metrics_md5: str | None) -> float | None:
        """Return the seconds of the run whose metrics.json has that md5; None unless exactly one has it."""
        found = self._by_metrics.get(metrics_md5 or "", {})
        return next(iter(found.values())) if len(found) == 1 else None

    @cached_property
    def _by_metrics(self) -> dict[str, dict[str, float | None]]:
        """Return md5 to run key to seconds; stores that an older version finished have no record."""
        found: dict[str, dict[str, float | None]] = {}
        for store in stores(self._root):
            if metrics := md5(store / "metrics.json"):
                found.setdefault(metrics, {})[store.name] = None
        for metrics, seconds in read_durations(self._root).items():
            found.setdefault(metrics, {}).update(seconds)
        for runs in found.values():
            for key in [key for key, seconds in runs.items() if seconds is None]:
                runs[key] = working_seconds_of(self._root / key)
        return found


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return *params* with a dotted key for each value; an empty section and a list are values."""
    found: dict[str, Any] = {}
    for key, value in params.items():
        is_section = isinstance(value, Mapping) and bool(value)
        found |= flatten(value, f"{prefix}{key}.") if is_section else {f"{prefix}{key}": value}
    return found


def _summary(name: str, files: RevisionFiles, durations: Durations) -> RunSummary:
    try:
        return _read_run(name, files, durations)
    except StageError as error:
        raise type(error)(f"run {name}: {error}") from error


def _read_run(name: str, files: RevisionFiles, durations: Durations) -> RunSummary:
    params, notes = _params(files)
    metrics = read_epoch_curves(files)
    output = files.paths.get("metrics")
    cached = files.is_cached
    if files.damaged:
        notes.append(_damage_note(files))
    elif files.lock and not cached:
        notes.append(_missing_note(files))
    return RunSummary(
        name=name,
        sha=files.sha,
        params=params,
        metrics=metrics,
        epochs=max((max(each.series) for each in metrics.values()), default=None),
        seconds=durations.seconds(files.hashes.get(output.as_posix())) if output else None,
        committed=files.committed,
        cached=cached,
        notes=tuple(notes),
    )


def _missing_note(files: RevisionFiles) -> str:
    command = "`dvc fetch --all-commits` or `dvc exp pull`" if files.sha else "`dvc fetch` or `dvc repro`"
    return f"not all outputs are in the cache. Run {command}"


def _damage_note(files: RevisionFiles) -> str:
    paths = ", ".join(map(str, sorted(files.damaged)))
    return f"damaged in the cache: {paths}. Run `learner doctor --deep --fix` to remove it"


def _params(files: RevisionFiles) -> tuple[dict[str, Any], list[str]]:
    """Return the params that the stages ran with, and notes about them."""
    now = files.read_tracked(PARAMS)
    sections: dict[str, Any] = {}
    # create-artifact-dir depends on all of params.yaml, so the entries of the other stages are newer
    stages = sorted(files.lock, key=lambda name: name != "create-artifact-dir")
    for name in stages:
        sections |= files.lock[name].get("params", {}).get(PARAMS, {})
    if not sections:
        return flatten(now), ["no stage has run: dvc.lock has no params"]
    ran, planned = flatten(sections), flatten(now)
    edited = [key for key in {**ran, **planned} if ran.get(key) != planned.get(key)]
    if edited:
        return ran, [f"{PARAMS} was edited since: {', '.join(edited)}"]
    return ran, []
