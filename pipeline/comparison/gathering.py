"""The runs that are to be compared, each read at its revision: from git, dvc.lock and DVC's cache."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.repo.experiments.utils import exp_refs_by_baseline
from dvc.scm import NoSCM

from pipeline.comparison.cached_files import CachedFiles
from pipeline.comparison.curves import measured
from pipeline.comparison.durations import Durations
from pipeline.comparison.runs import WORKSPACE, Comparison, Run
from pipeline.comparison.source import TRACKED, Source
from pipeline.engine.git import GitObject, committed_at, read_objects
from pipeline.project import runs_root
from pipeline.revisions.revision import resolved_all, resolved_in
from stages.contracts.errors import ParamsError, StageError

PARAMS = "params.yaml"


def gather(revs: Sequence[str] | None = None) -> Comparison:
    """Compare the runs called *revs*, as `sources` finds them."""
    return compared(sources(revs))


def compared(found: Mapping[str, Source]) -> Comparison:
    """Compare the runs in *found*. What the cache lacks is in a run's notes."""
    durations = Durations(runs_root())
    return Comparison(tuple(_read(name, source, durations) for name, source in found.items()))


def sources(revs: Sequence[str] | None = None) -> dict[str, Source]:
    """Find the runs called *revs*: experiments, branches, tags, SHAs, ``workspace``; each once.

    None stands for the workspace and all experiments on HEAD, the oldest first. Raises `ParamsError` for a
    name that leads nowhere, `StageError` where this is no project of git's and DVC's.
    """
    with _opened() as repo:
        root, cache = Path(repo.scm.root_dir), CachedFiles(Path(repo.cache.local.path))
        named = _experiments(repo, root) if revs is None else _named(repo, revs)
    committed = _committed(root, {sha for sha in named.values() if sha}, cache)
    return {name: committed[sha] if sha else _workspace(cache) for name, sha in named.items()}


@contextmanager
def _opened() -> Iterator[Repo]:
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


def _experiments(repo: Repo, root: Path) -> dict[str, str | None]:
    """Return the workspace and all experiments on HEAD, the oldest first."""
    head = resolved_in("HEAD", repo)
    refs = exp_refs_by_baseline(repo.scm, {head}).get(head, [])
    commits = _commits(root, [str(ref) for ref in refs])
    found = sorted(
        (committed_at(commit), str(ref.name), commit.sha) for ref, commit in zip(refs, commits, strict=True)
    )
    return {WORKSPACE: None, **{name: sha for _, name, sha in found}}


def _named(repo: Repo, revs: Sequence[str]) -> dict[str, str | None]:
    if not revs:
        raise ParamsError("name at least one run: an experiment, branch, tag or SHA, or `workspace`")
    found = resolved_all([rev for rev in revs if rev != WORKSPACE], repo)
    return {rev: found.get(rev) for rev in revs}


def _committed(root: Path, shas: Collection[str], cache: CachedFiles) -> dict[str, Source]:
    """Return the files of the commits *shas* in the repository *root*."""
    here = Path.cwd().resolve().relative_to(root.resolve())
    paths = [(here / name).as_posix() for name in TRACKED]
    objects = read_objects(root, [f"{sha}:{path}" for sha in shas for path in paths])
    found = {}
    for place, commit in enumerate(_commits(root, list(shas))):
        files = zip(TRACKED, objects[place * len(paths) : (place + 1) * len(paths)], strict=True)
        tracked = {name: file.content for name, file in files if file and file.kind == "blob"}
        found[commit.sha] = Source(tracked, cache, sha=commit.sha, committed=committed_at(commit))
    return found


def _commits(root: Path, names: Sequence[str]) -> list[GitObject]:
    """Return the commits *names* of the repository *root*. Raises `StageError` for a missing one."""
    found = read_objects(root, [f"{name}^{{commit}}" for name in names])
    missing = [name for name, commit in zip(names, found, strict=True) if commit is None]
    if missing:
        raise StageError(f"git has no commit {', '.join(missing)} in {root}: run `git fsck`")
    return [commit for commit in found if commit]


def _workspace(cache: CachedFiles) -> Source:
    try:
        return Source({name: Path(name).read_bytes() for name in TRACKED if Path(name).exists()}, cache)
    except OSError as error:
        raise ParamsError(f"{error.filename} cannot be read: {error.strerror}") from error


def _read(name: str, source: Source, durations: Durations) -> Run:
    try:
        return _run(name, source, durations)
    except StageError as error:
        raise type(error)(f"run {name}: {error}") from error


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
    ran, planned = flat(sections), flat(now)
    edited = [key for key in {**ran, **planned} if ran.get(key) != planned.get(key)]
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
