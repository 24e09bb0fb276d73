"""A process that has imported what a point needs, and forks a process for each point of a sweep.

An import of torch and DVC takes longer than a short training. The server imports them once, and a fork takes
milliseconds. Each point still has a process of its own, with its own folder, environment, signals and random
state. The server never runs a point itself, so that every point starts from the same state. It imports the
code of the project from a copy that users do not edit.

The fork does what `dvc exp run --temp` does in processes of its own, with DVC's own functions: it sets the
params, checks the outputs out, reproduces the pipeline and commits the experiment. A stage whose command is
``python -m pipeline stage NAME`` or ``learner stage NAME`` is a function call; DVC starts any other command.
"""

import gc
import json
import os
import pkgutil
import select
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from importlib import import_module
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.repo import Repo, lock_repo
from dvc.repo.experiments.executor.local import TempDirExecutor
from dvc.stage import PipelineStage
from dvc.stage.utils import _get_stage_files

import stages
from pipeline.engine import dvc_patches
from pipeline.engine.dvc_patches import StageCall, replace_command, write_lockfiles_once
from pipeline.engine.error_reports import report_error
from pipeline.engine.process_tree import open_process, terminate_once_with_parent
from pipeline.engine.reproduce import find_cause
from pipeline.engine.signals import defer_signals, end_on_signal
from pipeline.flows.prefect_api import run_stage_of_dvc
from pipeline.project.git import run_git
from pipeline.project.inputs import find_missing_files
from pipeline.project.params_edit import set_params
from pipeline.project.yaml_files import read_definition
from pipeline.sweep.point_process import FIRST_POINT_SUFFIX, IN_USE_CODE, PointRequest
from stages.contracts.errors import RunInUseError, StageFailedError
from stages.system.file_lock import is_locked, open_lock, wait_for_lock
from stages.system.processes import end_process

PRELOADED = (
    "dulwich.gc",
    "dulwich.porcelain",
    "dulwich.worktree",
    "dvc.cachemgr",
    "dvc.data_cloud",
    "dvc.dirs",
    "dvc.repo.artifacts",
    "dvc.repo.brancher",
    "dvc.repo.datasets",
    "dvc.repo.experiments.queue.workspace",
    "dvc.repo.graph",
    "dvc.repo.index",
    "dvc.repo.plots",
    "dvc.repo.stage",
    "dvc.repo.trie",
    "dvc.utils.plots",
    "dvc.utils.strictyaml",
    "dvc_data.hashfile.db.local",
    "dvc_data.hashfile.status",
    "dvc_data.index.checkout",
    "fsspec.implementations.memory",
    "hydra.core.override_parser.overrides_parser",
    "networkx.algorithms",
    "pyparsing",
    "scmrepo.git.backend.pygit2.filter",
)
"""Modules that DVC, torch and a stage import when they first need them."""
NOT_PRELOADED = ("stages.distributed.sharding", "stages.renderers.")
"""Beginnings of the names of modules that most points do not import, and that take long to import."""
MAX_MESSAGE_BYTES = 1 << 17
MAX_HANDLES = 3
"""File descriptors of a request: the channel of the point, its standard input, and its output."""
POLL_MILLISECONDS = 1000
STAGE_COMMANDS = ("python -m pipeline stage {name}", "learner stage {name}")
"""The commands that are replaced by a call in this process."""
TRAINING = "fit"


def main(arguments: Sequence[str]) -> None:
    """Serve the requests on the socket with the number in *arguments*, while the lock file there is held."""
    pid = os.getpid()
    _preload()
    control = socket.socket(fileno=int(arguments[0]))
    request = _Server(control, Path(arguments[1])).serve()
    if request is not None:
        code = _run(request, server=pid)
        end_process(code)
        sys.exit(code)


def _preload() -> None:
    """Import what points need, so that their processes share it."""
    for name in PRELOADED:
        import_module(name)
    for module in pkgutil.walk_packages(stages.__path__, f"{stages.__name__}."):
        if not module.name.startswith(NOT_PRELOADED):
            import_module(module.name)
    gc.collect()
    gc.freeze()


def _run(request: PointRequest, server: int) -> int:
    """Run the point in this process, a fork of process *server*, and return its exit code."""
    try:
        with end_on_signal():
            terminate_once_with_parent(server)
            run_point(request)
    except BaseException as error:  # noqa: BLE001  what is not reported is raised again
        code = report_error(error)
        return IN_USE_CODE if isinstance(error, RunInUseError) else code
    return 0


class _Server:
    def __init__(self, control: socket.socket, sweep_lock: Path) -> None:
        self._control = control
        self._sweep_lock = sweep_lock
        self._points: dict[int, tuple[int, socket.socket]] = {}
        """The process and the channel of each point in progress.

        The key is a descriptor of the process, which is readable when the process has exited.
        """
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> PointRequest | None:
        """Fork a process for each request; return the request in that process, and None at the end.

        The end is when the process that started the server has exited, or no process holds the lock.
        """
        while True:
            ready = [handle for handle, _ in self._poll.poll(POLL_MILLISECONDS)]
            for handle in self._points.keys() & ready:
                self._report_exit(handle)
            if self._control.fileno() in ready:
                message, handles, _, _ = socket.recv_fds(self._control, MAX_MESSAGE_BYTES, MAX_HANDLES)
                if not message:
                    return None
                if self._fork(*handles) == 0:
                    return PointRequest(**json.loads(message))
            elif not self._points and not is_locked(self._sweep_lock):
                return None

    def _fork(self, channel: int, stdin: int, output: int) -> int:
        """Start a process with these descriptors and return its id; in that process, return 0."""
        pid = os.fork()
        if pid == 0:
            os.setsid()  # the sweep signals the process group, when it has the id
            with socket.socket(fileno=channel) as connection:
                if not _send(connection, {"pid": os.getpid()}):
                    os._exit(1)  # the sweep has ended
            for place, handle in enumerate((stdin, output, output)):
                os.dup2(handle, place)
            self._control.close()
            for handle, (_, inherited) in self._points.items():
                inherited.close()
                os.close(handle)
        os.close(stdin)
        os.close(output)
        if pid:
            handle = open_process(pid)
            self._points[handle] = pid, socket.socket(fileno=channel)
            self._poll.register(handle, select.POLLIN)
        return pid

    def _report_exit(self, handle: int) -> None:
        """Send the exit code of the process with the descriptor *handle*, which has exited."""
        pid, channel = self._points.pop(handle)
        self._poll.unregister(handle)
        os.close(handle)
        _, status = os.waitpid(pid, 0)
        with channel:
            _send(channel, {"code": os.waitstatus_to_exitcode(status)})


def _send(channel: socket.socket, message: Mapping[str, int]) -> bool:
    """Send *message* and return True, or return False if the sweep has closed the channel."""
    try:
        channel.send(json.dumps(message).encode())
    except OSError:
        return False
    return True


def run_point(request: PointRequest) -> None:
    """Run the point in its copy of the project, and commit its experiment there.

    Changes the current folder, the environment and the module path of this process. Raises the error of a
    stage, and `StageError` if DVC fails.
    """
    os.chdir(request.folder)
    os.environ.update(request.environment)
    set_params(request.overrides, Path())
    dvc_patches.apply()
    with defer_signals() as signals, closing(_FirstPoint(Path(request.sweep_lock))) as first:
        call = StageCall(first.run_stage, signals, STAGE_COMMANDS)
        try:
            with replace_command(call), Repo() as repo:
                _run_experiment(repo, call, first, request.ref)
        except DvcException as error:
            cause = find_cause(error)
            if isinstance(cause, FileNotFoundError) and (missing := find_missing_files(read_definition())):
                advice = (
                    "or run `git add` or `dvc add`: the copy of a point has only the files that these track"
                )
                cause = StageFailedError(f"{next(iter(missing.values()))}, {advice}")
            raise cause from (cause.__cause__ or error)


def _run_experiment(repo: Repo, call: StageCall, first: "_FirstPoint", ref: str) -> None:
    repo.scm_context.quiet = True
    with lock_repo(repo):  # one lock for all steps, so that DVC reads the pipeline once
        repo.checkout(force=True, allow_missing=True)
        has_only_calls = all(
            call.replaces(stage) for stage in repo.index.stages if isinstance(stage, PipelineStage)
        )
        if has_only_calls:
            first.wait()
        with write_lockfiles_once() if has_only_calls else nullcontext():  # no other process reads them
            stages = repo.reproduce()
        # what an experiment has, even if git does not track it yet; the plots may have been missing before
        paths = set(TempDirExecutor._get_top_level_paths(repo))  # noqa: SLF001  see PATCHES
        for stage in repo.index.stages:
            paths.update(_get_stage_files(stage))
    _commit(repo, sorted(paths), f"dvc: commit experiment {TempDirExecutor.hash_exp(stages)}", ref)


class _FirstPoint:
    """The lock that the first point of a sweep holds until it trains.

    The other points then find the stages that do not depend on their params in DVC's run-cache.
    """

    def __init__(self, sweep_lock: Path) -> None:
        self._path = sweep_lock.with_suffix(FIRST_POINT_SUFFIX)
        self._stack = ExitStack()
        self.close = self._stack.close

    def wait(self) -> None:
        """Wait until a point of the sweep has trained or failed; hold the lock if this is the first one."""
        file = self._stack.enter_context(os.fdopen(open_lock(self._path), "r+b"))
        wait_for_lock(file)
        if file.seek(0, os.SEEK_END):
            self.close()

    def run_stage(self, name: str) -> None:
        """Run stage *name*, and release the lock if it is the training."""
        if name == TRAINING:
            self._path.write_bytes(b"1")
            self.close()
        run_stage_of_dvc(name, os.getpid())
        sys.stdout.flush()


def _commit(repo: Repo, paths: Sequence[str], message: str, ref: str) -> None:
    """Commit the changes in tracked files and the new files of *paths* as the reference *ref*."""
    run_git(Path(), "add", "--update", ":/")
    new = run_git(Path(), "ls-files", "-z", "--others", "--exclude-standard", "--", *paths)
    if new:
        run_git(Path(), "add", "--", *new.rstrip("\0").split("\0"))
    repo.scm.commit(message, no_verify=True)
    repo.scm.set_ref(ref, repo.scm.get_rev())


if __name__ == "__main__":
    main(sys.argv[1:])
