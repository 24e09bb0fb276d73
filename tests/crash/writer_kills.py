"""Kills at a random moment while a thread writes a checkpoint. The next run must give the same bytes."""

import os
import random
import shutil
import signal
import time
from itertools import count
from pathlib import Path

from report import Row, SkippedError
from small_run import SmallRun, fork, inspect_store, prepare, run_in_child, wait_for_result
from workers import run_trials

from stages.runs.file_names import (
    CHECKPOINT_FOLDER,
    STEP_FOLDER,
    epochs_in,
    parse_name,
    parse_partial_name,
)

SHARE_OF_SECOND_KILLS = 0.25
MAX_SECONDS_BETWEEN_TRIES = 0.01


class WriterKills:
    """Trials with one kill, or two, of a small run."""

    def __init__(self, folder, seed):
        self.folder = folder
        self.seed = seed
        prepare(folder)
        run = SmallRun(folder / "untouched")
        run.begin()
        begun = time.monotonic()
        code, _, text = run_in_child(run.fit)
        self.seconds = time.monotonic() - begun
        assert code == 0, text
        self.reference = run.outputs()

    def trial(self, index):
        """Kill and resume run *index*, repeated until a checkpoint is being written at the kill."""
        draw = random.Random(f"{self.seed} {index}")  # noqa: S311  no secret
        for attempt in count():
            run = SmallRun(self.folder / f"{index}-{attempt}")
            run.begin()
            if self._kill(run, draw):
                break
            shutil.rmtree(run.folder)
        kind, counted = describe_incomplete(run), {"too late": attempt}
        wrong = [self._inspect(run, counted)]
        if draw.random() < SHARE_OF_SECOND_KILLS and self._kill(run, draw):
            counted["killed again"] = 1
            wrong.append(self._inspect(run, counted))
        wrong += run.resume(self.reference)
        finding = run.close(f"trial {index}, attempt {attempt}, {kind}", wrong)
        return Row(kind, finding, counted)

    def _kill(self, run, draw):
        """Start *run* and kill it; return whether it was killed."""
        pid, reading = fork(run.fit)
        status = kill_while_writing(pid, draw, self.seconds)
        return wait_for_result(pid, reading, status)[0] == -signal.SIGKILL

    def _inspect(self, run, counted):
        """Return what is wrong with the checkpoints after a kill, and count the lost steps."""
        lost, unreadable, unsaved = inspect_store(run)
        counted[f"lost {lost} steps"] = counted.get(f"lost {lost} steps", 0) + 1
        return unreadable or unsaved


def kill_while_writing(pid, draw, seconds):
    """Kill child *pid* at a random moment at which it has a second thread; return its wait status.

    The first try is at a moment of a run that takes *seconds*. The process is stopped while its threads are
    counted, so that the write cannot end before the kill.
    """
    delay = draw.random() * seconds
    while True:
        time.sleep(delay)
        os.kill(pid, signal.SIGSTOP)
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return status
        if len([*Path(f"/proc/{pid}/task").iterdir()]) > 1:
            os.kill(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1]
        os.kill(pid, signal.SIGCONT)
        delay = draw.random() * MAX_SECONDS_BETWEEN_TRIES


def describe_incomplete(run):
    """Return the kind of the checkpoint of *run* that is not complete."""
    store = run.store()
    for folder, kind in ((CHECKPOINT_FOLDER, "of an epoch"), (STEP_FOLDER, "within an epoch")):
        names = [path.name for path in (store / folder).glob("*")]
        parsed = [parse_name(name) or parse_partial_name(name) for name in names]
        if {each.epoch for each in parsed if each} - {*epochs_in(names)}:
            return f"a checkpoint {kind} is incomplete"
    return "no file of a checkpoint is incomplete"


def run(asked, folder, until):
    """Return a row for each trial."""
    if not Path("/proc/self/task").is_dir():
        raise SkippedError("this system has no /proc, from which the threads of a run are counted")
    indices = [asked.replay] if asked.replay is not None else range(asked.count)
    return run_trials(WriterKills(folder, asked.seed).trial, indices, asked.jobs, until)
