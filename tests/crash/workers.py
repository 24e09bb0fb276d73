"""Concurrent trials, in forks of this process, which has imported what they need."""

import os
import pickle
import random
import tempfile
import time
import traceback


def run_trials(trial, items, jobs, until):
    """Return the results of *trial* for the *items* that started before *until*, from *jobs* processes."""
    started = [_start(trial, items[number::jobs], until) for number in range(jobs)]
    return [row for one in started for row in _rows(*one)]


def run_sample(trials, asked, until):
    """Return a row for each of the cases of *trials*: all, a sample of *asked.count*, or *asked.replay*."""
    indices = list(range(len(trials.cases)))
    if asked.count < len(indices):
        indices = trials.sample(asked.count, random.Random(asked.seed))  # noqa: S311  no secret
    if asked.replay is not None:
        indices = [asked.replay]
    return run_trials(trials.trial, indices, asked.jobs, until)


def _start(trial, items, until):
    file = tempfile.TemporaryFile()  # noqa: SIM115  the child writes it, and the parent reads it
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            pickle.dump([trial(item) for item in items if time.monotonic() < until], file)
            file.flush()
            code = 0
        except BaseException:  # noqa: BLE001  the child must not continue as a second parent
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
