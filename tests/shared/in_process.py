"""A command of ``learner`` in the process of the tests, which takes milliseconds instead of a second."""

import contextlib
import linecache
import logging
import os
import random
import sys
import tempfile
import traceback
import types
import warnings

import command_line  # noqa: F401  the commands of Typer are built once
import torch

from pipeline.__main__ import main
from pipeline.project.reads import record_reads

LOGGERS = (None, "dvc", "stages", "pipeline")
"""The loggers whose settings are restored; None is the root."""


def call(arguments, folder, environment):
    """Run ``learner`` with *arguments* as in a new process; return its exit code and the two outputs.

    Afterwards the folder, the environment, the search path, the settings of logging, warnings and torch, and
    the random state of this process are as before.
    """
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(_redirected(number)) for number in (1, 2)]
        for restored in (
            contextlib.chdir(folder),
            _environment(environment),
            _interpreter(folder, arguments),
            _logging(),
            _torch(),
            warnings.catch_warnings(),
        ):
            stack.enter_context(restored)
        code = _run()
    return code, *(stream.text for stream in streams)


def _run():
    """Run the command line and return the exit code, as the interpreter does."""
    try:
        main()
    except SystemExit as error:
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
        return 1 if isinstance(error.code, str) else error.code or 0
    except BaseException:  # noqa: BLE001  printed, as the interpreter does
        traceback.print_exc()
        return 1
    return 0


class _Redirected:
    text = ""


@contextlib.contextmanager
def _redirected(number):
    """Write what this process and its child processes write to descriptor *number* into a text."""
    name = {1: "stdout", 2: "stderr"}[number]
    result, before, copy = _Redirected(), getattr(sys, name), os.dup(number)
    before.flush()
    with tempfile.TemporaryFile("w+") as file:
        os.dup2(file.fileno(), number)
        setattr(sys, name, file)
        try:
            yield result
        finally:
            setattr(sys, name, before)
            os.dup2(copy, number)
            os.close(copy)
            file.seek(0)
            result.text = file.read()


@contextlib.contextmanager
def _environment(environment):
    before = dict(os.environ)
    os.environ.clear()
    os.environ |= environment
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


@contextlib.contextmanager
def _interpreter(folder, arguments):
    """Set what Python sets when it starts ``python -m pipeline`` in *folder*."""
    before = sys.argv, sys.path[:], sys.meta_path[:], sys.modules["__main__"]
    sys.argv, program = [str(folder / "pipeline/__main__.py"), *arguments], types.ModuleType("__main__")
    program.__package__ = "pipeline"  # for the usage that it prints
    sys.modules["__main__"] = program
    sys.path.insert(0, str(folder))
    record_reads().sources.clear()
    linecache.clearcache()
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.meta_path[:], sys.modules["__main__"] = before
        record_reads().sources.clear()


@contextlib.contextmanager
def _logging():
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(each.level, each.handlers[:], each.propagate, each.disabled) for each in loggers]
    threshold = logging.root.manager.disable
    try:
        yield
    finally:
        logging.disable(threshold)
        for each, (level, handlers, propagate, disabled) in zip(loggers, before, strict=True):
            each.setLevel(level)
            each.handlers[:], each.propagate, each.disabled = handlers, propagate, disabled


@contextlib.contextmanager
def _torch():
    """Restore the random state and the settings of torch."""
    before = random.getstate(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    threads, onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(before[0])
        torch.set_default_dtype(before[1])
        torch.use_deterministic_algorithms(before[2])
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = onednn
