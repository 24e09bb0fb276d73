"""The run of one stage in this process, with the params and paths of the project in the current folder.

A checkpoint of another run, from which build-learner starts, is copied to a temporary folder.

The run store and DVC's cache share checkpoints, as hard links to one read-only file. Before DVC commits the
outputs of ``fit``, the checkpoints in the run store are linked into the cache under their md5. DVC finds them
there and makes no copy. The state of each place is then:

* The store and the cache share an inode. No user edits files in either, and this project does not write to a
  finished checkpoint in place: the checkpointer writes a temporary file and renames it, and removal unlinks.
  As DVC does with every cached file, the inode is made read-only. `dvc gc`, `learner runs prune` and a new
  checkpoint remove one name and leave the other.
* The output in ``artifacts`` is a separate file, or a clone, which users may edit. If ``cache.type`` starts
  with ``hardlink``, DVC replaces it with a third name of the same inode.

A fault of the disk in a shared file damages both. The store verifies hashes when it reads, and then trains
from an earlier checkpoint; `learner run` and `learner doctor --deep` verify the cache. A new checkpoint
replaces a damaged object. If the store and the cache are on different file systems, or if the cache is shared
with other users, no file is linked and DVC copies as usual.
"""

import gc
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.engine.error_reports import explain_user_errors
from pipeline.engine.rank_launcher import launch_fit, needs_launch
from pipeline.engine.rank_process import accept_termination
from pipeline.engine.signals import defer_signals
from pipeline.project.cache import find_cache, local_objects
from pipeline.project.check import check_params, read_spec
from pipeline.project.dependencies import DepsGuard, guard_deps
from pipeline.project.git import try_git
from pipeline.project.inputs import find_data_files, list_values
from pipeline.project.params import PARAMS, Params, read_params
from pipeline.project.paths import (
    DVC_FOLDER,
    build_stage_paths,
    check_path,
    find_above,
    find_output_md5,
    read_paths,
    runs_root,
)
from pipeline.project.run_cache import remove_stale_entries
from pipeline.project.snapshot import check_loaded, check_unchanged, store_folder_lists, take_snapshot
from pipeline.project.versions import check_versions, read_code_hashes, version_of
from pipeline.project.yaml_files import read_mapping
from stages import build_learner, create_artifact_dir, fit, load_data, runs, save_model
from stages.contracts.errors import ParamsError
from stages.contracts.events import Interrupter, Renderer
from stages.learner import from_params
from stages.params.build_learner_params import BuildLearnerPaths, CheckpointConfig
from stages.params.fit_params import FitContext, FitPaths
from stages.params.save_model_params import SaveModelPaths
from stages.runs.file_names import CHECKPOINT_FOLDER
from stages.system.files import md5, new_part, remove_stale_parts

PREFIX = ".resume-"
STALE_SECONDS = 24 * 3600
"""Age of a folder of a killed process after which it is removed."""
READ_ONLY = 0o444
"""The mode of every file in DVC's cache."""


def _create_artifact_dir(params: Params, paths: dict[str, Path], _: DepsGuard) -> None:
    check_params(params)  # in the first stage of `dvc repro`
    if cache := find_cache(find_above(DVC_FOLDER)):
        remove_stale_entries(cache, read_mapping(PARAMS))
    create_artifact_dir.create_artifact_dir(
        params.create_artifact_dir,
        build_stage_paths(create_artifact_dir.CreateArtifactDirPaths, paths, owned=paths),
        params.model_dump(mode="json"),
    )


def _load_data(params: Params, paths: dict[str, Path], _: DepsGuard) -> None:
    load_data.load_data(params.load_data, build_stage_paths(load_data.LoadDataPaths, paths))


def _build_learner(params: Params, paths: dict[str, Path], _: DepsGuard) -> None:
    stage_paths = build_stage_paths(BuildLearnerPaths, paths)
    with open_checkpoint(params.build_learner.checkpoint, paths) as directory:
        build_learner.build_learner(
            params.build_learner, stage_paths, directory, portable=params.fit.portable
        )


class GuardedInterrupter(Interrupter):
    """An interrupter that raises the error of *guard* after a step that has read a missing dependency.

    A training would otherwise run to its end before its results are refused.
    """

    def __init__(self, guard: DepsGuard) -> None:
        super().__init__()
        self._guard = guard

    def should_stop(self) -> bool:
        """Return whether the run must stop. Raises `StageError` if deps lack a file that was read."""
        self._guard.check_if_grown()
        return super().should_stop()


def _fit(
    params: Params, paths: dict[str, Path], guard: DepsGuard, *, renderer: Renderer | None = None
) -> None:
    stage_paths = build_stage_paths(FitPaths, paths, runs=runs_root())
    interrupter = GuardedInterrupter(guard)
    with defer_signals(interrupter):
        if needs_launch(params.fit):
            launch_fit(params.fit, stage_paths, _code(stage_paths), interrupter, renderer=renderer)
            return
        read_spec(stage_paths.learner, params)  # it may come from a remote, and building runs what it names
        group = from_params.join_ranks(params.fit)
        if group.size > 1:
            interrupter.should_stop()  # from now on a signal only sets the flag: the ranks stop together
            accept_termination()
        context = FitContext(
            _code(stage_paths) if group.is_main else {},
            find_output_md5(stage_paths.metrics),
            renderer,
            interrupter,
            group,
            params=params.model_dump(mode="json") if params.fit.loggers else {},
            tags=_tags() if params.fit.loggers else {},
            allowed=list_values(params.load_data),
            check_reads=guard.check,
        )
        if not group.is_main:
            from_params.follow_main(params.fit, stage_paths, context)
            return
        store = fit.fit(params.fit, stage_paths, context)
        if objects := local_objects(DVC_FOLDER):
            link_into_cache(store / CHECKPOINT_FOLDER, objects)


def _tags() -> dict[str, str]:
    """Return the commit that the run starts from, and the name of DVC's experiment, if any."""
    commit = try_git(Path(), "rev-parse", "HEAD").stdout.strip()
    tags = {"git.commit": commit, "dvc.experiment": os.environ.get("DVC_EXP_NAME", "")}
    return {name: value for name, value in tags.items() if value}


def _code(paths: FitPaths) -> dict[str, str | None]:
    """Return path to digest of the code that a run depends on, including the user's own models.

    Raw data is not part of it: the prepared data has the hashes of its files.
    """
    snapshot = take_snapshot("fit")
    raw = [path for path in find_data_files(read_params().load_data) if path != Path()]
    inputs = (paths.learner, paths.data, *raw)
    return read_code_hashes(snapshot.params) | {
        path.as_posix(): state.digest or runs.content_hash(path)
        for path, state in sorted(snapshot.files.items())
        if not any(path.is_relative_to(folder) for folder in inputs)
    }


def read_key_entries() -> dict[str, Any]:
    """Return the entries from which the key of a run would be computed now."""
    stage_paths = build_stage_paths(FitPaths, read_paths(), runs=runs_root())
    return fit.key_entries(read_params().fit, stage_paths, _code(stage_paths))


def _save_model(params: Params, paths: dict[str, Path], _: DepsGuard) -> None:
    stage_paths = build_stage_paths(SaveModelPaths, paths)
    if stage_paths.learner is not None and stage_paths.learner.exists():
        read_spec(stage_paths.learner, params)
    save_model.save_model(params.save_model, stage_paths)


BODIES: dict[str, Callable[[Params, dict[str, Path], DepsGuard], None]] = {
    "create-artifact-dir": _create_artifact_dir,
    "load-data": _load_data,
    "build-learner": _build_learner,
    "fit": _fit,
    "save-model": _save_model,
}


def run_stage(name: str, renderer: Renderer | None = None) -> None:
    """Run stage *name* with the params.yaml and dvc.yaml of the current folder.

    *renderer* shows the stage that trains. Raises `ParamsError` if there is no such stage and as `check_path`
    does, `StageError` if a dependency of the stage is changed while it runs or is missing in dvc.yaml, and
    whatever the stage raises.
    """
    version = version_of(name)
    if cache := find_cache(find_above(DVC_FOLDER)):
        check_path(cache.absolute())
    before = take_snapshot(name)  # first, so that a later change of the files read below is detected
    check_loaded(before, version)
    check_versions(before)
    body = BODIES[name] if renderer is None or name != "fit" else partial(_fit, renderer=renderer)
    params, paths = read_params(), read_paths()
    if body is not _create_artifact_dir:  # which computes nothing, and so does not import torch
        from_params.prepare_process(params.fit)
    if not gc.isenabled():  # as at the start of a process
        _collect_what_follows(name)
    with guard_deps(name, params, run_stage) as guard, explain_user_errors(name):
        body(params, paths, guard)
    check_unchanged(before)
    store_folder_lists(before)


def _collect_what_follows(name: str) -> None:
    """Import what stage *name* uses, and let Python collect only the garbage of later objects."""
    if name in ("build-learner", "fit", "save-model"):
        import_module("stages.learner.builder")
    gc.freeze()
    gc.enable()


@contextmanager
def open_checkpoint(checkpoint: CheckpointConfig | None, paths: dict[str, Path]) -> Iterator[Path | None]:
    """Yield the folder of *checkpoint*, which is valid in the block; None if *checkpoint* is None.

    The checkpoint of a revision is copied from DVC's cache, or its remote, to a folder next to the run
    stores. Raises `ParamsError` for a path among the pipeline's own outputs, and `CheckpointError` if the
    checkpoint is missing.
    """
    if checkpoint is None:
        yield None
    elif checkpoint.path is not None:
        _check_outside(Path(checkpoint.path), paths)
        yield Path(checkpoint.path)
    else:
        with _folder(runs_root()) as folder:
            revisions = import_module(
                "pipeline.project.revisions.revision"
            )  # imports DVC, which few runs need here
            revisions.Revision(checkpoint.rev).fetch(checkpoint.epoch, folder)
            yield folder


def _check_outside(path: Path, paths: dict[str, Path]) -> None:
    for output in paths.values():
        if Path(os.path.abspath(path)).is_relative_to(Path(os.path.abspath(output))):  # noqa: PTH100  no link followed
            raise ParamsError(
                f"build_learner.checkpoint.path is {path}, an output of this pipeline, which DVC removes "
                "before the next run. Run `learner resume HEAD --epoch N` to resume a committed run, or copy "
                "the checkpoint to another folder"
            )


@contextmanager
def _folder(root: Path) -> Iterator[Path]:
    """Yield a temporary folder below *root*, and remove stale ones of killed processes."""
    root.mkdir(parents=True, exist_ok=True)
    for stale in root.glob(f"{PREFIX}*"):
        with suppress(FileNotFoundError):
            if time.time() - stale.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(stale, ignore_errors=True)
    with TemporaryDirectory(prefix=PREFIX, dir=root, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def link_into_cache(checkpoints: Path, objects: Path) -> None:
    """Make each file in *checkpoints* the cached file with its md5 in *objects*, if a hard link can be made.

    Killed at any moment, it leaves complete files, and can be called again.
    """
    with suppress(OSError):  # another file system, no hard links, no permission: DVC copies
        for file in sorted(checkpoints.glob("[!.]*")):
            if not file.is_symlink():
                _link(file, checkpoints.parent / file.name, objects)


def _link(file: Path, beside: Path, objects: Path) -> None:
    """Link *file* by way of a temporary name for *beside*, which is not in a directory that is published."""
    remove_stale_parts(beside)
    part = new_part(beside)
    os.link(file, part)  # from here on, a replacement of *file* has no effect
    try:
        part.chmod(READ_ONLY)
        digest = str(md5(part))
        place = objects / digest[:2] / digest[2:]
        place.parent.mkdir(exist_ok=True)
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)  # it is still there if *place* was the same file
