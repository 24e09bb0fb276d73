"""The files of revisions, read from git and DVC's local cache without a checkout or a download.

Each cached file is read and verified once,
however many runs have it: so 1,000 runs are compared in seconds.
"""

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from pipeline.project.git import list_experiments
from pipeline.project.lockfile import parse_lockfile
from pipeline.project.paths import parse_paths
from pipeline.project.revisions.dvc_checks import DIRECTORY_SUFFIX
from pipeline.project.revisions.names import (
    commit_time,
    find_collisions,
    open_project,
    read_commits,
    read_objects,
    resolve_all,
)
from pipeline.project.snapshot import interpolate
from pipeline.project.yaml_files import MAX_YAML_BYTES, parse_yaml, stages_of
from stages.contracts.errors import ParamsError, StageError
from stages.system.files import is_name_below, parse_file_list, read_regular

WORKSPACE = "workspace"
"""The name of the run in the user's own folder, which may not be committed."""
SHORT_SHA = 10
"""Digits of a short SHA."""
TRACKED = ("dvc.lock", "dvc.yaml", "params.yaml")
"""Files in git that are read, relative to the project."""
OUTPUT_KINDS = ("outs", "metrics", "plots")
MAX_VERIFIED_BYTES = 1 << 20
"""Largest cached file whose content `is_intact` checks. `learner doctor --deep` checks all of them."""


def read_revisions(revs: Sequence[str] | None) -> dict[str, "RevisionFiles"]:
    """Return the files of *revs* by name, each once: experiments, branches, tags, SHAs, ``workspace``.

    None stands for the workspace and all experiments on HEAD, the oldest first; an experiment with the name
    of another revision is then listed by its short SHA. Raises `ParamsError` for an unknown name,
    `StageError` if this is not a project of git and DVC.
    """
    if revs is not None and not revs:
        raise ParamsError("no run is named. Name an experiment, branch, tag or SHA, or `workspace`")
    with open_project() as repo:
        root, cache = Path(repo.scm.root_dir), LocalCache(Path(repo.cache.local.path))
        shas: dict[str, str | None]
        collisions: dict[str, str] = {}
        if revs is None:
            experiments = list_experiments(root, repo.scm.get_rev())
            names = find_collisions(repo, experiments) | ({WORKSPACE} & experiments.keys())
            collisions = {experiments[name]: name for name in names}
            listed = {sha[:SHORT_SHA] if name in names else name: sha for name, sha in experiments.items()}
            shas = {WORKSPACE: None, **listed}
        else:
            commits = resolve_all(repo, [rev for rev in revs if rev != WORKSPACE])
            shas = {rev: commits.get(rev) for rev in revs}
    committed = _read_committed(root, {sha for sha in shas.values() if sha}, cache)
    for sha, name in collisions.items():
        committed[sha].collision = name
    return {name: committed[sha] if sha else _read_workspace(cache) for name, sha in shas.items()}


def read_runs(revs: Sequence[str] | None) -> dict[str, "RevisionFiles"]:
    """Return the files of *revs* as `read_revisions` does.

    Raises `ParamsError` too if none of them has a dvc.yaml in the current folder, so that none can have run.
    """
    revisions = read_revisions(revs)
    if not any(files.has_pipeline for files in revisions.values()):
        raise ParamsError(f"no run has a dvc.yaml in {Path.cwd()}. Run the command in the folder that has it")
    return revisions


def open_cache() -> "LocalCache":
    """Return the cache of the project of the current folder.

    Raises `StageError` if this is not a project of git and DVC, and `ParamsError` if git has no commit.
    """
    with open_project() as repo:
        return LocalCache(Path(repo.cache.local.path))


class LocalCache:
    """DVC's local cache in *root*; each object is read and verified at most once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._states: dict[str, bool | None] = {}
        """Hash to whether the content has that hash; None if the object is missing."""
        self._lists: dict[str, dict[str, str]] = {}

    def path_of(self, md5: str) -> Path:
        """Return the path of an object."""
        return self._root / md5[:2] / md5[2:]

    def read_times(self) -> dict[str, int]:
        """Return the modification time of each folder, which changes when an object is added or removed."""
        with suppress(FileNotFoundError), os.scandir(self._root) as entries:
            return {entry.name: entry.stat().st_mtime_ns for entry in entries if entry.is_dir()}
        return {}

    def list_objects(self) -> set[str]:
        """Return the hashes of all objects."""
        hashes: set[str] = set()
        for folder in self.read_times():
            with suppress(FileNotFoundError):
                hashes |= {f"{folder}{name}" for name in os.listdir(self._root / folder)}  # noqa: PTH208  no Path per object
        return hashes

    def read(self, md5: str) -> bytes | None:
        """Return the content of an object; None if it is missing or damaged."""
        if self._states.get(md5, True) is not True:
            return None
        path = f"{self._root}/{md5[:2]}/{md5[2:]}"
        try:
            content = read_regular(path)
        except FileNotFoundError:
            self._states[md5] = None
            return None
        except OSError as error:
            raise StageError(f"{path} cannot be read: {error.strerror}. Make it readable") from error
        if md5 not in self._states:
            digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
            self._states[md5] = digest == md5.removesuffix(DIRECTORY_SUFFIX)
        return content if self._states[md5] else None

    def files_of(self, md5: str) -> dict[str, str]:
        """Return path to hash of each file in a directory; empty if its list is missing or damaged.

        Raises `StageError` if DVC cannot have written the list.
        """
        if md5 not in self._lists:
            content = self.read(md5)
            self._lists[md5] = {} if content is None else parse_file_list(content, self.path_of(md5))
        return self._lists[md5]

    def is_damaged(self, md5: str) -> bool:
        """Return whether the object was read and does not have that hash."""
        return self._states.get(md5) is False

    def is_intact(self, md5: str) -> bool:
        """Return whether the object exists and, up to `MAX_VERIFIED_BYTES`, has that hash."""
        if md5 not in self._states:
            try:
                size = os.stat(f"{self._root}/{md5[:2]}/{md5[2:]}").st_size  # noqa: PTH116  as above
            except FileNotFoundError:
                self._states[md5] = None
                return False
            if size > MAX_VERIFIED_BYTES:
                return True
            self.read(md5)
        return self._states[md5] is True


@dataclass(eq=False)
class RevisionFiles:
    """The files of a commit, an experiment or the workspace."""

    _tracked: Mapping[str, bytes]
    """The contents of those `TRACKED` files that exist."""
    _cache: LocalCache
    sha: str | None = None
    """In full; None for the workspace, as the time of the commit."""
    committed: datetime | None = None
    collision: str | None = None
    """The name of an experiment that is listed by its SHA, because another revision has that name."""
    damaged: set[Path] = field(default_factory=set)
    """Cached files whose content was read and does not have their hash."""

    @property
    def has_pipeline(self) -> bool:
        """True if it has a dvc.yaml."""
        return "dvc.yaml" in self._tracked

    @cached_property
    def lock(self) -> Mapping[str, Any]:
        """Stage to its entry in dvc.lock; empty before the first run."""
        if "dvc.lock" not in self._tracked:
            return {}
        return stages_of(parse_lockfile(self._text("dvc.lock"), "dvc.lock"))

    @cached_property
    def paths(self) -> Mapping[str, Path]:
        """``vars.paths`` of its own dvc.yaml; empty if it has none or is not valid YAML."""
        return _parse_paths(self._text("dvc.yaml"))

    def read_tracked(self, name: str) -> Mapping[str, Any]:
        """Return the content of the YAML file *name*, one of `TRACKED`; empty if it is missing."""
        content = parse_yaml(self._text(name), name)
        return content if isinstance(content, dict) else {}

    def read(self, path: Path) -> str:
        """Return the text of an output, or of a file in one; empty if it is not recorded or not cached."""
        return self.read_bytes(path).decode("utf-8", errors="replace")

    def read_bytes(self, path: Path) -> bytes:
        """Return the content that `read` decodes."""
        md5 = self.hashes.get(path.as_posix())
        if md5 is None:
            return b""
        content = self._cache.read(md5)
        self._note_damage(md5)
        return content or b""

    def below(self, directory: Path) -> list[Path]:
        """Return every recorded file below *directory*, sorted; empty for an output that is not cached."""
        prefix = f"{directory.as_posix()}/"
        return sorted(Path(name) for name in self.hashes if name.startswith(prefix))

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Path to hash of every file of every output, as far as the lists of directories are cached."""
        return dict(pair for path, md5 in self._outputs() for pair in self._files_of(path, md5))

    @property
    def is_cached(self) -> bool:
        """True if the cache has every recorded output, and the files up to `MAX_VERIFIED_BYTES` are intact.

        Outputs with ``cache: false`` in dvc.yaml are not considered. False before the first run.
        """
        uncached = _parse_uncached(self._text("dvc.yaml"))
        outputs = [(path, md5) for path, md5 in self._outputs() if path not in uncached]
        lists = [md5 for _, md5 in outputs if md5.endswith(DIRECTORY_SUFFIX)]
        files = [md5 for output in outputs for _, md5 in self._files_of(*output)]
        intact = [self._is_intact(md5) for md5 in (*lists, *files)]
        return bool(self.lock) and all(intact)

    def _outputs(self) -> Iterator[tuple[str, str]]:
        """Yield path and hash of each output below this folder; a stage with a wdir may have others."""
        outs = [out for stage in self.lock.values() for out in stage.get("outs", [])]
        yield from ((out["path"], out["md5"]) for out in outs if "md5" in out and is_name_below(out["path"]))

    def _files_of(self, path: str, md5: str) -> Iterator[tuple[str, str]]:
        if not md5.endswith(DIRECTORY_SUFFIX):
            yield path, md5
            return
        yield from ((f"{path}/{name}", file_md5) for name, file_md5 in self._cache.files_of(md5).items())
        self._note_damage(md5)

    def _is_intact(self, md5: str) -> bool:
        intact = self._cache.is_intact(md5)
        self._note_damage(md5)
        return intact

    def _note_damage(self, md5: str) -> None:
        if self._cache.is_damaged(md5):
            self.damaged.add(self._cache.path_of(md5))

    def _text(self, name: str) -> str:
        """Return the text of the tracked file *name*; empty if it is missing."""
        try:
            return self._tracked.get(name, b"").decode("utf-8")
        except UnicodeDecodeError as error:
            raise ParamsError(f"{name} is not valid YAML: {error}") from error


def _read_committed(root: Path, shas: Collection[str], cache: LocalCache) -> dict[str, RevisionFiles]:
    """Return the files of the commits *shas* in the repository *root*, by SHA."""
    revisions = {}
    for sha, commit in zip(shas, read_commits(root, list(shas)), strict=True):
        files = zip(TRACKED, read_objects(Path.cwd(), [f"{sha}:{name}" for name in TRACKED]), strict=True)
        tracked = {name: file.data for name, file in files if file and file.type_str == "blob"}
        revisions[sha] = RevisionFiles(tracked, cache, sha=sha, committed=commit_time(commit))
    return revisions


def _read_workspace(cache: LocalCache) -> RevisionFiles:
    try:
        tracked = {name: read_regular(name, MAX_YAML_BYTES) for name in TRACKED if Path(name).exists()}
    except OSError as error:
        raise ParamsError(f"{error.filename} cannot be read: {error.strerror}. Make it readable") from error
    return RevisionFiles(tracked, cache)


@lru_cache(maxsize=16)
def _parse_paths(text: str) -> dict[str, Path]:
    with suppress(ParamsError):
        content = parse_yaml(text, "dvc.yaml")
        return parse_paths(content, "dvc.yaml") if isinstance(content, dict) else {}
    return {}


@lru_cache(maxsize=16)
def _parse_uncached(text: str) -> frozenset[str]:
    """Return the paths of the outputs with ``cache: false`` in a dvc.yaml; empty if it is not valid YAML.

    ``${paths.NAME}`` in a path is resolved, but no other variable.
    """
    values = {"paths": {name: path.as_posix() for name, path in _parse_paths(text).items()}}
    with suppress(ParamsError, AttributeError, TypeError):
        stages = interpolate(stages_of(parse_yaml(text, "dvc.yaml")), values).values()
        outputs = [output for stage in stages for kind in OUTPUT_KINDS for output in stage.get(kind) or ()]
        pairs = [pair for output in outputs if isinstance(output, dict) for pair in output.items()]
        return frozenset(
            Path(path).as_posix() for path, options in pairs if (options or {}).get("cache") is False
        )
    return frozenset()
