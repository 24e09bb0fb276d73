"""A process that has imported torch, DVC, Prefect and this project, and forks one process for each request.

These imports take seven seconds of processor time and more. The server imports them once and runs nothing
itself: every fork starts from the same state, whatever tests ran before. A process that runs tests starts it
when the first test needs it. The workers of xdist share the one of the process that has started them.
"""

import atexit
import contextlib
import filecmp
import functools
import gc
import importlib.abc
import importlib.machinery
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import re
import runpy
import signal
import sys
import threading
import time
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("stages", "pipeline")
PREFECT = ("prefect.main", "prefect.flow_engine", "prefect.task_engine", "prefect.runner")
"""Modules that take a second to import; a fork has not imported them until it does (see `_LatePrefect`)."""
IMPORTED_LATER = ("pipeline.flows.", "pipeline.sweep.", "pipeline.scaffold.template", "pipeline.__main__")
"""Beginnings of the names of modules that the server does not import: users of Prefect, and programs."""
SET_AT_START = ("PYTHON", "OMP_", "MKL_NUM")
"""Beginnings of environment variables that Python or torch has read before the fork."""
STAGE_COMMAND = r"(?:python -m pipeline|learner) stage (\S+)"
"""The command of a stage in dvc.yaml."""
TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


SERVER = multiprocessing.forkserver._forkserver


@functools.cache
def server_context():
    """Return the context of `multiprocessing` whose processes are forks of the server."""
    if SERVER._forkserver_address is None:
        start_server()
    return multiprocessing.get_context("forkserver")


def start_server():
    """Start the server and return its address, for `share_server` in other processes."""
    from pipeline.sweep.point_server import NOT_PRELOADED, PRELOADED

    paths = [
        path.relative_to(ROOT) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
    ]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    later = (*IMPORTED_LATER, *NOT_PRELOADED)
    SERVER.set_forkserver_preload(
        [
            "torch.distributed.fsdp",
            "torch._dynamo",
            "pytest",
            "dvc.cli",
            "pipeline.flows.prefect_api",
            "sklearn.datasets",
            *PREFECT,
            *PRELOADED,
        ]
        + [name for name in names if not name.startswith(later)]
        + ["tests.shared.command_line", "tests.shared.huge_pages"]  # these two have effects
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # the server imports the packages in its folder, and a test may be in a project
        patch.setenv("PREFECT_HOME", str(ROOT))  # any folder that exists: Prefect would make one for the user
        patch.setenv("OMP_NUM_THREADS", "1")  # torch reads it when it is imported
        with discarded_output():
            SERVER.ensure_running()
    return SERVER._forkserver_address


@contextlib.contextmanager
def discarded_output():
    """Give processes that are started in the block no standard output and error, which their forks share."""
    sys.stdout.flush()
    before, nowhere = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
    for place in (1, 2):
        os.dup2(nowhere, place)
    try:
        yield
    finally:
        for place, handle in zip((1, 2), before, strict=True):
            os.dup2(handle, place)
            os.close(handle)
        os.close(nowhere)


def share_server(address):
    """Use the server at *address*, which another process has started and stops."""
    SERVER._forkserver_address = address
    SERVER._forkserver_alive_fd = os.open(os.devnull, os.O_WRONLY)  # of a pipe, in the process that stops it
    SERVER.ensure_running = resource_tracker.ensure_running


def stop_server():
    """Stop the server, if this process has started it, and wait until it has ended.

    It would end by itself when the pipe to this process is closed. A worker of a data loader, which a failed
    run has left in this process, holds a copy of that pipe.
    """
    if SERVER._forkserver_pid is not None:
        os.kill(SERVER._forkserver_pid, signal.SIGTERM)
    SERVER._stop()


class ForkedProgram:
    """A Python program that runs in a fork of the server, with the interface of `subprocess.Popen`."""

    def __init__(self, module, arguments, *, folder, environment, streams, new_session=False):
        """Run *module* as ``python -m`` does; *streams* are the files of standard output and error."""
        reserved = [name for name in environment if name.startswith(SET_AT_START)]
        changed = [name for name in reserved if environment[name] != os.environ.get(name)]
        assert not changed, f"{changed} have no effect in a fork: start a process"
        self._process = server_context().Process(
            target=_run,
            args=(module, arguments, folder, environment, streams, new_session),
        )
        self._process.start()
        self.pid = self._process.pid
        while new_session and self.poll() is None and os.getpgid(self.pid) != self.pid:
            time.sleep(0.001)  # a test may signal the process group at once

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"process {self.pid} did not end in {timeout} s")
        return self._process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _run(module, arguments, folder, environment, streams, new_session):
    """Run the program in this process, a fork of the server."""
    if new_session:
        os.setsid()
    for number, name in zip((1, 2), streams, strict=True):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), number)
    stage = fork_stages_of_dvc() if module == "dvc" else None
    become(*stage or (module, arguments, folder, environment))


def fork_stages_of_dvc():
    """Have DVC run the stages of this project in forks of a process that is forked now.

    That process has the place of the shell between DVC and the command of a stage, and the state of a Python
    that has only imported modules. Return None in DVC's process, and the program in the process of a stage.
    """
    import dvc.stage.run
    from dvc.stage.exceptions import StageCmdFailedError

    dvc_end, shell_end = multiprocessing.Pipe()
    shell = os.fork()
    if shell == 0:
        dvc_end.close()
        return _serve_stages(shell_end)
    shell_end.close()
    atexit.register(lambda: (dvc_end.close(), os.waitpid(shell, 0)))
    start_process = dvc.stage.run._run

    def run(executable, cmd, *, cwd, env, **options):
        if not (stage := re.fullmatch(STAGE_COMMAND, cmd)):
            start_process(executable, cmd, cwd=cwd, env=env, **options)
            return
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as DVC does while a command runs
        try:
            dvc_end.send(("pipeline", ["stage", stage[1]], Path(cwd), env))
            if code := dvc_end.recv():
                raise StageCmdFailedError(cmd, code)
        finally:
            signal.signal(signal.SIGINT, before)

    dvc.stage.run._run = run
    return None


def _serve_stages(connection):
    """Fork a process for each program that *connection* names, and return the program there."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in TERMINATION_SIGNALS}
    with contextlib.suppress(EOFError):
        while True:
            program = connection.recv()
            if (pid := os.fork()) == 0:
                for number, handler in before.items():
                    signal.signal(number, handler)
                connection.close()
                return program
            connection.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def become(module, arguments, folder, environment):
    """Run the program as if Python had started with it."""
    os.environ.clear()
    os.environ |= environment
    os.chdir(folder)
    sys.path[:] = [str(folder), *(name for name in sys.path if not name.startswith(str(ROOT / "tests")))]
    if has_other_code(folder):
        for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
            del sys.modules[name]
    if "prefect" in sys.modules:
        sys.meta_path.insert(0, _LatePrefect())
    gc.freeze()
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception:  # noqa: BLE001  as the interpreter does
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()


class _LatePrefect(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Has this process import the loaded modules of Prefect again, when it first imports Prefect.

    Prefect reads its settings and configures logging when it is imported, so until then a program must not
    have it, and then it must do both again.
    """

    def __init__(self):
        names = [name for name in sys.modules if name.partition(".")[0] == "prefect"]
        self._modules = {name: sys.modules.pop(name) for name in names}
        self._spec = self._modules["prefect"].__spec__
        logging.root.handlers.clear()

    def find_spec(self, name, path, target=None):
        """Return a spec of Prefect, and find no other module."""
        return importlib.machinery.ModuleSpec(name, self) if name == "prefect" else None

    def create_module(self, spec):
        """Return the module that the server has loaded."""
        return self._modules["prefect"]

    def exec_module(self, module):
        """Do again what depends on the process."""
        sys.meta_path.remove(self)
        module.__spec__ = self._spec
        sys.modules |= self._modules
        module.context.refresh_global_settings_context()
        configuration = module.logging.configuration
        configuration.PROCESS_LOGGING_CONFIG.clear()
        configuration.setup_logging()


def has_other_code(folder):
    """Return whether Python imports a package in *folder* that differs from the one of the server."""
    return any(
        (folder / name).with_suffix(".py").exists()
        or ((folder / name).exists() and not _is_copy(folder / name, ROOT / name))
        for name in PACKAGES
    )


def _is_copy(folder, original):
    names = _sources(folder)
    return names == _own_sources(original) and all(
        filecmp.cmp(folder / name, original / name) for name in names
    )


def _sources(folder):
    """Return the paths of the Python files below *folder*, relative to it."""
    return {
        os.path.relpath(os.path.join(above, name), folder)  # noqa: PTH118  as fast as it gets
        for above, _, names in os.walk(folder)
        for name in names
        if name.endswith(".py")
    }


_own_sources = functools.cache(_sources)
