"""The runs that are to be compared, each read at its revision: from git, dvc.lock and DVC's cache."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.repo.experiments.utils import exp_refs_by_baseline
from dvc.scm import NoSCM

from pipeline.compared.curves import measured
from pipeline.compared.durations import Durations
from pipeline.compared.runs import WORKSPACE, Comparison, Run
from pipeline.compared.source import Source
from pipeline.paths import runs_root
from pipeline.revisions import resolved_in
from stages.contracts.errors import ParamsError, StageError

PARAMS = "params.yaml"


def gather(revs: Sequence[str] | None = None) -> Comparison:
    """The runs called *revs*: experiments, branches, tags, SHAs, ``workspace``; each once.

    None stands for the workspace and all experiments on HEAD, the oldest first. What the cache lacks is
    said in a run's notes. Raises `ParamsError` for a name that leads nowhere, `StageError` where this is
    no project of git's and DVC's.
    """
    with opened() as repo:
        durations = Durations(runs_root())
        named = _default(repo) if revs is None else _named(repo, revs)
        return Comparison(tuple(_read(name, Source(repo, sha), durations) for name, sha in named.items()))


@contextmanager
def opened() -> Iterator[Repo]:
    """The project as DVC sees it. Raises `StageError` where it is none, or has no commit."""
    try:
        with Repo() as repo:
            if isinstance(repo.scm, NoSCM):
                raise StageError(
                    f"{Path.cwd()} is no git repository, so it has no runs: `git init` makes one"
                )
            yield repo
    except DvcException as error:
        raise StageError(f"{Path.cwd()} has no runs to compare: {error}") from error


def _default(repo: Repo) -> dict[str, str | None]:
    head = resolved_in("HEAD", repo)
    found = []
    for ref in exp_refs_by_baseline(repo.scm, {head}).get(head, []):
        sha = str(repo.scm.get_ref(str(ref)))
        found.append((repo.scm.resolve_commit(sha).commit_time, str(ref.name), sha))
    return {WORKSPACE: None, **{name: sha for _, name, sha in sorted(found)}}


def _named(repo: Repo, revs: Sequence[str]) -> dict[str, str | None]:
    if not revs:
        raise ParamsError("name at least one run: an experiment, branch, tag or SHA, or `workspace`")
    return {rev: None if rev == WORKSPACE else resolved_in(rev, repo) for rev in revs}


def _read(name: str, source: Source, durations: Durations) -> Run:
    try:
        return _run(name, source, durations)
    except ParamsError as error:
        raise ParamsError(f"run {name}: {error}") from error


def _run(name: str, source: Source, durations: Durations) -> Run:
    params, notes = _params(source)
    metrics = measured(source)
    written = source.paths.get("metrics")
    cached = source.cached
    if source.damaged:
        notes.append(_damaged(source))
    elif source.lock and not cached:
        notes.append(_missing(source))
    return Run(
        name=name,
        sha=source.sha,
        params=params,
        metrics=metrics,
        epochs=max((max(each.series) for each in metrics.values()), default=None),
        seconds=durations.seconds(source.hashes.get(written.as_posix())) if written else None,
        committed=source.committed,
        cached=cached,
        notes=tuple(notes),
    )


def _missing(source: Source) -> str:
    brought = "`dvc fetch --all-commits` or `dvc exp pull`" if source.sha else "`dvc fetch` or `dvc repro`"
    return f"not all outputs are in the cache: {brought} brings them"


def _damaged(source: Source) -> str:
    files = ", ".join(map(str, sorted(source.damaged)))
    return f"damaged in the cache: {files}. Run `learner doctor --deep --fix` to remove it"


def _params(source: Source) -> tuple[dict[str, Any], list[str]]:
    """What the stages were told when they ran, and what is to be said of it."""
    now = source.tracked(PARAMS)
    sections: dict[str, Any] = {}
    whole_first = sorted(source.lock, key=lambda name: name != "create-artifact-dir")  # others know better
    for name in whole_first:
        sections |= source.lock[name].get("params", {}).get(PARAMS, {})
    if not sections:
        return flat(now), ["nothing was run: there is no dvc.lock with params"]
    ran = flat(sections)
    edited = [key for key in {**ran, **flat(now)} if ran.get(key) != flat(now).get(key)]
    if edited:
        return ran, [f"{PARAMS} was edited since: {', '.join(edited)}"]
    return ran, []


def flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """*params* with a dotted key for each value that is no section; an empty section is a value."""
    found: dict[str, Any] = {}
    for key, value in params.items():
        inner = isinstance(value, Mapping) and bool(value)
        found |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found
