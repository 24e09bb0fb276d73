"""Commands of ``learner`` in a fork of the test's process, with a terminal or pipes as their output.

The fork has imported most of what a command needs, so that one takes a tenth of a new process. The terminal
is a real one, a pty.
"""

import os
import pty
import selectors
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import command_line  # noqa: F401  the commands of Typer are built once

from pipeline.__main__ import main
from pipeline.sweep.point_server import PRELOADED

SHARED = (
    *PRELOADED,
    "pipeline.comparison.plots",
    "pipeline.comparison.tables",
    "pipeline.doctor.checkout",
    "pipeline.doctor.environment",
    "pipeline.scaffold.new_project",
    "pipeline.sweep.sweep",
    "stages.runs.verification",
    "stages.learner.summary",
    "stages.records.tools.conversion",
    "stages.records.tools.diff",
    "typer.rich_utils",
)
"""Modules that commands import late: the first fork would import them, and every later one too."""


@dataclass(frozen=True)
class Ended:
    """The exit code of a command, and what it wrote to the terminal or to both pipes."""

    code: int
    text: str


def run_in_terminal(folder, *arguments, **environment):
    """Run ``learner`` with *arguments* in *folder*, with a terminal as its input and output."""
    _import_shared()
    pid, terminal = pty.fork()
    if pid == 0:
        _run(folder, arguments, environment)
    return _collect(pid, {terminal})


def run_in_pipe(folder, *arguments, reader=True, **environment):
    """Run ``learner`` with *arguments* in *folder*, with a pipe as standard output and another for errors.

    If *reader* is false, nobody reads the first: its other end is closed, as after ``| head``. *environment*
    has variables, and the encoding of the output as ``encoding``.
    """
    _import_shared()
    (output, output_end), (error, error_end) = os.pipe(), os.pipe()
    if not reader:
        os.close(output)
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output_end, 1)
        os.dup2(error_end, 2)
        _close({output, output_end, error, error_end})
        _run(folder, arguments, environment)
    _close({output_end, error_end})
    return _collect(pid, {output, error} if reader else {error})


@cache
def _import_shared():
    for name in SHARED:
        import_module(name)


def _close(handles):
    for handle in handles:
        with suppress(OSError):
            os.close(handle)


def _run(folder, arguments, environment):
    code, encoding = 70, environment.pop("encoding", "utf-8")
    try:
        os.chdir(folder)
        os.environ.update({"COLUMNS": "200", "TERM": "xterm-256color", **environment})
        for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
            stream = open(number, mode, encoding=encoding, closefd=False)  # noqa: SIM115  descriptors
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        sys.argv = ["learner", *arguments]
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  what Python would print
        os.write(2, traceback.format_exc().encode(errors="replace"))
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError as error:  # what Python reports at its exit
                os.write(2, f"Exception ignored: {error!r}".encode())
        os._exit(code)


def _collect(pid, handles):
    """Read *handles* until the process *pid* and its children have closed them, and return what ended."""
    found = b""
    with selectors.DefaultSelector() as selector:
        for handle in handles:
            selector.register(handle, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                part = b""
                with suppress(OSError):  # EIO: the terminal was closed
                    part = os.read(key.fd, 1 << 16)
                found += part
                if not part:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    return Ended(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), found.decode(errors="surrogateescape"))
