"""Trials beside each other, in forks of this process that has all they need."""

import os
import pickle
import tempfile
import time
import traceback


def run_trials(trial, items, jobs, until):
    """What *trial* gives for each of *items* that could be begun before *until*, by *jobs* processes."""
    started = [_start(trial, items[number::jobs], until) for number in range(jobs)]
    return [row for one in started for row in _rows(*one)]


def _start(trial, items, until):
    file = tempfile.TemporaryFile()  # noqa: SIM115  the child writes it, and the parent reads it
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            pickle.dump([trial(item) for item in items if time.monotonic() < until], file)
            file.flush()
            code = 0
        except BaseException:  # noqa: BLE001  the child must not run on as a second parent
            traceback.print_exc()
        os._exit(code)
    return pid, file


def _rows(pid, file):
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"a worker ended with {os.waitstatus_to_exitcode(status)}: see above")
    with file:
        file.seek(0)
        return pickle.load(file)  # noqa: S301  our own
