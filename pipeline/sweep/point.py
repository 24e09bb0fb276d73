"""A point of a sweep as an experiment of DVC in this process, in a copy of the project.

It does what `dvc exp run --temp` does in processes of its own, with DVC's own functions: it sets the params,
checks the outputs out, reproduces the pipeline and commits the experiment. A stage whose command is
``python -m pipeline stage NAME`` or ``learner stage NAME`` is a function call; DVC starts any other command.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Self

from dvc.env import DVC_EXP_BASELINE_REV, DVC_EXP_NAME
from dvc.exceptions import DvcException
from dvc.repo import Repo, lock_repo
from dvc.repo.experiments.executor.local import TempDirExecutor
from dvc.stage import PipelineStage
from dvc.stage.utils import _get_stage_files
from dvc.utils.cli_parse import to_path_overrides

from pipeline.engine import dvc_patches
from pipeline.engine.dvc_patches import StageCall, replace_command, write_lockfiles_once
from pipeline.engine.project_copy import isolate_site_cache
from pipeline.engine.reproduce import find_cause
from pipeline.engine.signals import defer_signals
from pipeline.flows.stage_recording import run_stage_of_dvc
from pipeline.project.git import run_git
from pipeline.project.params_edit import apply
from pipeline.sweep.point_process import FIRST_POINT_SUFFIX, PointRequest
from stages.contracts.printing import print_error
from stages.runs.layout import RUNS_FOLDER
from stages.system.file_lock import open_lock, wait_for_lock

STAGE_COMMANDS = ("python -m pipeline stage {name}", "learner stage {name}")
"""The commands that are replaced by a call in this process."""
TRAINING = "fit"


def run_point(request: PointRequest) -> None:
    """Run the point in its copy of the project, and commit its experiment there.

    Changes the current folder, the environment and the module path of this process. Raises the error of a
    stage, and `StageError` if DVC fails.
    """
    os.chdir(request.folder)
    os.environ.update({DVC_EXP_NAME: request.name, DVC_EXP_BASELINE_REV: request.head, **request.environment})
    os.environ.update(isolate_site_cache(Path(request.folder)))
    with suppress(FileNotFoundError):
        Path(RUNS_FOLDER).unlink()  # the locks in it are those of one copy; the run stores are below the root
    for path, overrides in to_path_overrides(request.overrides).items():
        apply(overrides, Path(path))
    dvc_patches.apply()
    with defer_signals() as signals, _FirstPoint(Path(request.sweep_lock)) as first:
        call = StageCall(first.run_stage, signals, STAGE_COMMANDS, request.root)
        try:
            with replace_command(call), Repo() as repo:
                _run_experiment(repo, call, first, request.ref)
        except DvcException as error:
            cause = find_cause(error)
            raise cause from (cause.__cause__ or error)


def _run_experiment(repo: Repo, call: StageCall, first: "_FirstPoint", ref: str) -> None:
    repo.scm_context.quiet = True
    with lock_repo(repo):  # one lock for all steps, so that DVC reads the pipeline once
        repo.checkout(force=True, allow_missing=True)
        has_only_calls = all(
            call.replaces(each) for each in repo.index.stages if isinstance(each, PipelineStage)
        )
        if has_only_calls:
            first.wait()
        with write_lockfiles_once() if has_only_calls else nullcontext():  # no other process reads them
            stages = repo.reproduce()
        paths = _list_paths(repo)  # reads the plots, which the cache may have lacked before
    _commit(repo, paths, f"dvc: commit experiment {TempDirExecutor.hash_exp(stages)}", ref)


class _FirstPoint:
    """The lock that the first point of a sweep holds until it trains.

    The other points then find the stages that do not depend on their params in DVC's run-cache.
    """

    def __init__(self, sweep_lock: Path) -> None:
        self._path = sweep_lock.with_suffix(FIRST_POINT_SUFFIX)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait(self) -> None:
        """Wait until a point of the sweep has trained or failed; hold the lock if this is the first one."""
        file = self._stack.enter_context(os.fdopen(open_lock(self._path), "r+b"))
        wait_for_lock(file)
        if file.seek(0, os.SEEK_END):
            self._stack.close()

    def run_stage(self, name: str) -> None:
        """Run stage *name*, and release the lock if it is the training."""
        if name == TRAINING:
            self._end()
        run_stage_of_dvc(name, os.getpid(), print_error)
        sys.stdout.flush()

    def _end(self) -> None:
        self._path.write_bytes(b"1")
        self._stack.close()


def _list_paths(repo: Repo) -> list[str]:
    """Return the paths of the pipeline that an experiment has, even if git does not track them yet."""
    paths = set(TempDirExecutor._get_top_level_paths(repo))  # noqa: SLF001  see PATCHES
    for stage in repo.index.stages:
        paths.update(_get_stage_files(stage))
    return sorted(paths)


def _commit(repo: Repo, paths: Sequence[str], message: str, ref: str) -> None:
    """Commit the changes in tracked files and the new files of *paths* as the reference *ref*."""
    run_git(Path(), "add", "--update", ":/")
    new = run_git(Path(), "ls-files", "-z", "--others", "--exclude-standard", "--", *paths)
    if new:
        run_git(Path(), "add", "--", *new.rstrip("\0").split("\0"))
    repo.scm.commit(message, no_verify=True)
    repo.scm.set_ref(ref, repo.scm.get_rev())
