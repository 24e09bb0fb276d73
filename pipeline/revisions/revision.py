"""What a git revision of this project has in DVC's cache: a commit's outputs, or an experiment's."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from dvc.api import DVCFileSystem
from dvc.env import DVC_ROOT
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.repo.experiments.utils import AmbiguousExpRefInfo, fix_exp_head, resolve_name
from dvc.scm import RevError, SCMError, map_scm_exception, resolve_rev
from dvc_data.index import DataIndexError

from pipeline.engine.cache_content import DIRECTORY_SUFFIX, remove_damaged_files, remove_if_damaged
from pipeline.lockfile import read_lockfile
from pipeline.project import read_paths
from stages.checkpoints.file_names import CHECKPOINT_FOLDER, epochs_in, parse_name, trainer_name
from stages.contracts.errors import CheckpointError, ParamsError, StageError


def resolved(name: str) -> str:
    """The full SHA of *name*: an experiment, a tag, a branch, a short SHA, or an expression of git's.

    Raises `ParamsError` where there is none, `StageError` where this is no project of git's and DVC's.
    """
    try:
        with Repo() as repo:
            return resolved_in(name, repo)
    except DvcException as error:
        raise StageError(f"{Path.cwd()} has no revisions: {error}") from error


def resolved_in(name: str, repo: Repo) -> str:
    """The same, of a project that is open."""
    try:
        return str(resolve_rev(repo.scm, name))
    except RevError as error:
        known = ", ".join(sorted(_experiments(repo))) or "none"
        raise ParamsError(
            f"{error}: it is no experiment, tag, branch or commit here. Experiments: {known}; "
            "`dvc exp pull` and `git fetch` bring those of others"
        ) from error


def resolved_all(names: Sequence[str], repo: Repo) -> dict[str, str]:
    """The same, of many names: the list of experiments, which git keeps in one file each, is read once."""
    found, unknown = {}, []
    for name in names:
        try:
            with map_scm_exception():
                found[name] = str(repo.scm.resolve_rev(fix_exp_head(repo.scm, name)))
        except SCMError:
            unknown.append(name)
    try:
        refs = resolve_name(repo.scm, unknown)
    except AmbiguousExpRefInfo:
        refs = {}
    for name in unknown:  # a name that is not an experiment, or is two, is refused
        found[name] = str(repo.scm.get_ref(str(refs[name]))) if refs.get(name) else resolved_in(name, repo)
    return found


def _experiments(repo: Repo) -> Iterator[str]:
    for each in repo.experiments.ls(all_commits=True).values():
        yield from (name for name, _ in each)


class Revision:
    """One revision, by its full SHA; its files lie where its own dvc.yaml says."""

    def __init__(self, rev: str) -> None:
        self.rev = rev
        with self._told(), TemporaryDirectory() as folder:
            root = Path(Repo.find_root())
            self._here = Path.cwd().resolve().relative_to(root)
            with Repo(os.environ.get(DVC_ROOT) or str(root)) as repo:
                now = {section: repo.config[section] for section in ("core", "remote", "cache")}
                self._cache = Path(repo.cache.local.path)
                self._files = DVCFileSystem(repo.root_dir, rev=rev, config=now)
            self._get(Path("dvc.yaml"), Path(folder) / "dvc.yaml")
            self.paths = read_paths(Path(folder) / "dvc.yaml")
            self._remove_damaged_lists(Path(folder) / "dvc.lock")

    def epochs(self) -> list[int]:
        """Those of which its outputs have a checkpoint, ascending."""
        return epochs_in(self._names(self.paths["checkpoint"]))

    def check(self, epoch: int) -> None:
        """Raise `CheckpointError` where it has no checkpoint of *epoch*, or where that cannot be had here.

        DVC remembers the names of files that it does not have any more, so one of them is fetched.
        """
        there = self.epochs()
        if epoch not in there:
            raise CheckpointError(
                f"revision {self.rev[:12]} has no checkpoint of epoch {epoch}; there: "
                f"{', '.join(map(str, there)) or 'none, or none that its dvc.lock has'}"
            )
        directory = self.paths["checkpoint"]
        name = trainer_name(epoch)
        with self._told(), TemporaryDirectory() as folder:
            self._get(directory / name, Path(folder) / name)

    def fetch(self, epoch: int, target: Path) -> None:
        """Copy its checkpoints up to *epoch*, and its logs, into *target*, as an artifact directory.

        Raises `CheckpointError` for what it does not have, or what neither the cache nor a remote has.
        """
        self.check(epoch)
        with self._told():
            for name in self._names(self.paths["checkpoint"]):
                parsed = parse_name(name)
                if parsed and parsed.epoch <= epoch:
                    self._get(self.paths["checkpoint"] / name, target / CHECKPOINT_FOLDER / name)
            for split in ("train", "valid"):
                self._get(self.paths[split], target / split)

    def _remove_damaged_lists(self, lock: Path) -> None:
        """Remove damaged lists of files from the cache; *lock* is the path to copy its dvc.lock to."""
        if not self._files.exists((self._here / "dvc.lock").as_posix()):
            return
        self._get(Path("dvc.lock"), lock)
        for stage in (read_lockfile(lock).get("stages") or {}).values():
            for out in stage.get("outs", []):
                if str(out.get("md5")).endswith(DIRECTORY_SUFFIX):
                    remove_if_damaged(self._cache, out["md5"])

    def _names(self, directory: Path) -> list[str]:
        """Return the names of the files in *directory*; none if it is not recorded."""
        with self._told():
            found = self._files.ls((self._here / directory).as_posix(), detail=True)
        paths = [Path(each["name"]) for each in found if each["type"] == "file"]
        return [path.name for path in paths if path.parent == self._here / directory]

    def _get(self, source: Path, target: Path) -> None:
        """Copy a file or directory; DVC takes from a remote what is missing or damaged in the cache."""
        target.parent.mkdir(parents=True, exist_ok=True)
        place = (self._here / source).as_posix()
        remove_damaged_files(self._files, place)
        self._files.get(place, str(target), recursive=True)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What is not there, told with what brings it."""
        try:
            yield
        except RevError as error:
            raise CheckpointError(
                f"{error}: it is not in this git repository. `git fetch` brings a commit of others, "
                "`dvc exp pull REMOTE NAME` an experiment"
            ) from error
        except (FileNotFoundError, DvcException, DataIndexError) as error:
            raise CheckpointError(
                f"revision {self.rev[:12]} is not whole here ({error}): neither DVC's cache nor a remote "
                "that is set up has it. `dvc fetch --all-commits` brings what a remote has, and of an "
                "experiment `dvc exp pull REMOTE NAME`; after a `dvc gc`, only a new run of it brings it back"
            ) from error
        except OSError as error:
            raise StageError(
                f"{error.filename or self.rev}: {error.strerror or error}, while revision {self.rev[:12]} "
                "was copied: make space, and give the same command again"
            ) from error
