"""One revision with all its outputs, which DVC takes from the cache or from a remote.

`read_results` returns its results, and `set_checkpoint` edits params.yaml to resume from it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dvc.api import DVCFileSystem
from dvc.env import DVC_ROOT
from dvc.exceptions import DvcException
from dvc.fs import GitFileSystem
from dvc.repo import Repo
from dvc.scm import SCM, RevError
from dvc_data.index import DataIndexError

from pipeline.project.lockfile import LOCKFILE, list_other_params, read_lockfile
from pipeline.project.params import PARAMS
from pipeline.project.params_edit import override_params
from pipeline.project.paths import read_paths
from pipeline.project.revisions.dvc_checks import (
    DIRECTORY_SUFFIX,
    apply_checks,
    object_path,
    remove_damaged_files,
    remove_if_damaged,
)
from pipeline.project.revisions.names import resolve
from pipeline.project.snapshot import ABSENT, look_up, read_params_file
from pipeline.project.yaml_files import parse_yaml, read_mapping, read_yaml, stages_of
from stages.contracts.errors import CheckpointError, StageError
from stages.contracts.history import History
from stages.contracts.printing import print_error
from stages.loggers.log_files import count_epochs, read_history
from stages.runs.file_names import CHECKPOINT_FOLDER, epochs_in, parse_name, trainer_name
from stages.runs.key import format_value, leaves
from stages.system.files import replace_content


class Revision:
    """A commit, an experiment or the workspace; its own dvc.yaml names the paths of its files.

    Construction and all methods raise `CheckpointError` for what is missing from the repository, the cache
    and the remotes, and `OSError` if a file cannot be written.
    """

    def __init__(self, rev: str | None) -> None:
        """Open the revision *rev*, a full SHA or the name of an experiment; None opens the workspace."""
        self.rev = rev
        apply_checks()
        with self._explain_missing(), TemporaryDirectory() as folder:
            root = Path(Repo.find_root())
            self._here = Path.cwd().resolve().relative_to(root)
            with Repo(os.environ.get(DVC_ROOT) or str(root)) as repo:
                self._cache = Path(repo.cache.local.path)
                if rev is None:
                    self._files = DVCFileSystem(str(root))
                else:
                    now = {section: repo.config[section] for section in ("core", "remote", "cache")}
                    self._files = DVCFileSystem(_open_at(Path(repo.root_dir), rev, now))
            self.copy(Path("dvc.yaml"), Path(folder) / "dvc.yaml")
            self.paths = read_paths(Path(folder) / "dvc.yaml")
            self._remove_damaged_lists(Path(folder) / "dvc.lock")

    def epochs(self) -> list[int]:
        """Return the epochs of its checkpoints, ascending."""
        return epochs_in(self.names(self.paths["checkpoint"]))

    def check(self, epoch: int) -> None:
        """Raise `CheckpointError` if it has no checkpoint of *epoch*, or if that cannot be fetched.

        DVC keeps the names of files that it no longer has, so one of them is fetched.
        """
        epochs = self.epochs()
        if epoch not in epochs:
            listed = ", ".join(map(str, epochs)) or "none, or none that its dvc.lock has"
            raise CheckpointError(
                f"revision {self._name} has no checkpoint of epoch {epoch}; found {listed}. "
                "Choose another epoch"
            )
        directory = self.paths["checkpoint"]
        name = trainer_name(epoch)
        with self._explain_missing(), TemporaryDirectory() as folder:
            self.copy(directory / name, Path(folder) / name)

    def fetch(self, epoch: int, target: Path) -> None:
        """Copy its checkpoints up to *epoch*, and its logs, into *target*, as an artifact directory.

        Raises `CheckpointError` if it has no such checkpoint, or if neither the cache nor a remote has it.
        """
        self.check(epoch)
        for name in self.names(self.paths["checkpoint"]):
            parsed = parse_name(name)
            if parsed and parsed.epoch <= epoch:
                self.copy(self.paths["checkpoint"] / name, target / CHECKPOINT_FOLDER / name)
        for split in ("train", "valid"):
            self.copy(self.paths[split], target / split)

    def list_other_params(self) -> list[str]:
        """Return a line for each param of a file other than params.yaml that now has another value."""
        if not self.exists(LOCKFILE):
            return []
        with TemporaryDirectory() as folder:
            self.copy(LOCKFILE, Path(folder) / LOCKFILE)
            stages = stages_of(read_lockfile(Path(folder) / LOCKFILE)).values()
        lines = [
            f"{name}: {change}"
            for name, recorded in list_other_params(stages)
            for change in _list_changes_since(recorded, read_params_file(Path(name)))
        ]
        return list(dict.fromkeys(lines))

    def exists(self, path: Path) -> bool:
        """Return whether it has the file or directory *path*, whether or not that is cached."""
        with self._explain_missing():
            return bool(self._files.exists((self._here / path).as_posix()))

    def names(self, directory: Path) -> list[str]:
        """Return the names of the files in *directory*; empty if it is not recorded."""
        with self._explain_missing():
            entries = self._files.ls((self._here / directory).as_posix(), detail=True)
        paths = [Path(entry["name"]) for entry in entries if entry["type"] == "file"]
        return [path.name for path in paths if path.parent == self._here / directory]

    def copy(self, source: Path, target: Path) -> None:
        """Copy a file or directory; DVC takes from a remote what is missing or damaged in the cache."""
        path = (self._here / source).as_posix()
        with self._explain_missing():
            target.parent.mkdir(parents=True, exist_ok=True)
            remove_damaged_files(self._files, path)
            self._files.get(path, str(target), recursive=True)

    def path_in_cache(self, path: Path) -> Path | None:
        """Return the path of the output file *path* in the cache; None if DVC does not track it."""
        with self._explain_missing():
            entry = self._files.info((self._here / path).as_posix()).get("dvc_info") or {}
        return object_path(self._cache, entry["md5"]) if "md5" in entry else None

    @property
    def _name(self) -> str:
        return self.rev[:12] if self.rev else "workspace"

    def _remove_damaged_lists(self, lock: Path) -> None:
        """Remove damaged lists of files from the cache; *lock* is the path to copy its dvc.lock to."""
        if not self.exists(Path("dvc.lock")):
            return
        self.copy(Path("dvc.lock"), lock)
        for stage in stages_of(read_lockfile(lock)).values():
            for out in stage.get("outs", []):
                if out.get("md5", "").endswith(DIRECTORY_SUFFIX):
                    remove_if_damaged(self._cache, out["md5"])

    @contextmanager
    def _explain_missing(self) -> Iterator[None]:
        """Raise the errors of DVC, and those for missing files, with the commands that remove the cause."""
        try:
            yield
        except StageError:
            raise
        except RevError as error:
            raise CheckpointError(
                f"{error}: not in this git repository. Run `git fetch` to get a commit of others, "
                "`dvc exp pull REMOTE NAME` to get an experiment"
            ) from error
        except (FileNotFoundError, DvcException, DataIndexError) as error:
            raise CheckpointError(
                f"revision {self._name} is not complete here ({error}): neither DVC's cache nor a configured "
                "remote has the file. Run `dvc fetch --all-commits` to get what a remote has, or for an "
                "experiment `dvc exp pull REMOTE NAME`; after a `dvc gc`, run the revision again"
            ) from error


def _open_at(root: Path, rev: str, config: Mapping[str, Any]) -> Repo:
    """Return the project in *root* at the revision *rev*, with the settings *config*.

    DVC opens a revision at the top of the git repository, but *root* may be a folder below it.
    """
    scm = SCM(str(root))
    folder = Path("/") / root.resolve().relative_to(Path(scm.root_dir).resolve())
    return Repo(str(folder), fs=GitFileSystem(scm=scm, rev=rev), scm=scm, config=config)


@dataclass(frozen=True)
class NewestModel:
    """The model of the newest checkpoint, as a file that later runs do not replace."""

    epoch: int
    name: str
    """Its path in the project."""
    cached: Path
    """Its file in DVC's cache."""


@dataclass(frozen=True)
class Results:
    """The results of one run."""

    rev: str | None
    """The revision; None for the workspace."""
    history: History
    epochs: int
    params: Mapping[str, Any]
    """Dotted name to value."""
    metrics: Mapping[str, float]
    """Dotted name to value, of the last epoch."""
    checkpoint: NewestModel | None


def read_results(rev: str | None = None) -> Results | None:
    """Return the results of revision *rev*, or of the workspace; None if it has no logs of a training.

    Raises `CheckpointError` if neither the cache nor a remote has what it recorded.
    """
    revision = Revision(rev)
    with TemporaryDirectory() as name:
        folder = Path(name)
        revision.copy(Path("params.yaml"), folder / "params.yaml")
        for output in ("train", "valid", "metrics"):
            if revision.exists(revision.paths[output]):
                revision.copy(revision.paths[output], folder / output)
        history = read_history(folder)
        if not len(history):
            return None
        metrics = leaves(read_yaml(folder / "metrics")) if (folder / "metrics").exists() else {}
        return Results(
            rev,
            history,
            count_epochs(folder),
            leaves(read_yaml(folder / "params.yaml")),
            {name: value for name, value in metrics.items() if isinstance(value, int | float)},
            _newest_model(revision),
        )


def _newest_model(revision: Revision) -> NewestModel | None:
    directory = revision.paths["checkpoint"]
    if not revision.exists(directory):
        return None
    parsed_names = ((parse_name(name), name) for name in revision.names(directory))
    names = {parsed.epoch: name for parsed, name in parsed_names if parsed and parsed.part == "model"}
    if not names:
        return None
    epoch = max(names)
    path = directory / names[epoch]
    cached = revision.path_in_cache(path)
    return NewestModel(epoch, path.as_posix(), cached) if cached else None


@contextmanager
def restore_params_unless_accepted(before: bytes, outcomes: Mapping[str, str]) -> Iterator[None]:
    """Restore params.yaml to *before* if the block raises before build-learner accepts the checkpoint.

    *outcomes* has the stages that are up to date.

    An edit of params.yaml during the block is kept. After build-learner has accepted the checkpoint, the new
    params.yaml is kept, because the same run resumes with it.
    """
    written = PARAMS.read_bytes()
    try:
        yield
    except BaseException:
        if "build-learner" not in outcomes and PARAMS.read_bytes() == written:
            replace_content(PARAMS, before)
        raise


def set_checkpoint(
    name: str, epoch: int, *, weights_only: bool, overrides: Sequence[str]
) -> tuple[str, list[str]]:
    """Set params.yaml to the params of the revision *name*, with its checkpoint of *epoch* and *overrides*.

    *overrides* have the syntax of DVC's ``-S``. Returns the full SHA, and a line for each other param that
    has changed. Raises `CheckpointError` if the epoch is missing and `ParamsError` if the params would not be
    valid; then params.yaml does not change. Params of other files stay; a warning has those that differ.
    """
    rev = resolve(name)
    revision = Revision(rev)
    revision.check(epoch)
    with TemporaryDirectory() as folder:
        revision.copy(PARAMS, Path(folder) / PARAMS)
        content = read_mapping(Path(folder) / PARAMS)
    checkpoint = {"rev": rev, "epoch": epoch} | ({"weights_only": True} if weights_only else {})
    content["build_learner"] = {**(content.get("build_learner") or {}), "checkpoint": checkpoint}
    text = override_params(overrides, content, f"{PARAMS} of {rev[:12]}")
    changes = list(_list_changes(leaves(read_yaml(PARAMS)), leaves(parse_yaml(text, PARAMS))))
    replace_content(PARAMS, text.encode())
    for line in revision.list_other_params():
        file = line.partition(":")[0]
        print_error(
            f"warning: {line}. To resume with the value of the run, use `git checkout {rev[:12]} -- {file}`"
        )
    return rev, changes


def _list_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each param that differs, except for those of the checkpoint."""
    for name in {**after, **before}:
        now, then = _format(after, name), _format(before, name)
        if now != then and not name.startswith("build_learner.checkpoint"):
            yield f"{name} is {now}, and was {then}"


def _list_changes_since(recorded: Mapping[str, Any], now: Any) -> Iterator[str]:
    """Yield a line for each of the *recorded* params whose value in *now* differs."""
    present = {key: value for key in recorded if (value := look_up(now, key)) is not ABSENT}
    yield from _list_changes(leaves(recorded), leaves(present))


def _format(params: Mapping[str, Any], name: str) -> str:
    return format_value(params[name]) if name in params else "not set"
