"""Kills of `dvc exp run --temp` in a checkout with uncommitted edits."""

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from checkouts import EPOCHS, checkouts, leftovers, wait_until
from recovery import BLOCKED, DOCTOR, RECOVERED, Recovery, recover, run_doctor
from report import Row
from trial_projects import COMMANDS, TEMP
from workers import run_trials

COMMAND = (*COMMANDS[TEMP], "-S", EPOCHS)
MOMENTS = {"preparing": 0.4, "copying": 1.0, "training": 1.5, "any moment": 8.0}
"""The states, and the seconds within which a kill follows each."""
ORDER = ("preparing", "training", "preparing", "copying", "any moment")


@dataclass(frozen=True)
class Plan:
    """A trial."""

    index: int
    moment: str
    target: str
    delay: float


def plan(seed, index, attempt):
    """Return trial *index*; each *attempt* has its own delay."""
    draw = random.Random(f"{seed} {index}")  # noqa: S311  not a secret
    moment = ORDER[index % len(ORDER)]
    target = draw.choices(("group", "dvc"), (3, 1))[0]
    delay = random.Random(f"{seed} {index} {attempt}").uniform(0, MOMENTS[moment])  # noqa: S311
    return Plan(index, moment, target, delay)


class Experiments:
    """Trials, each in its own edited checkout."""

    def __init__(self, folder, seed):
        self.seed = seed
        self.folder = folder
        self.checkouts = checkouts(folder.parent)

    def trial(self, index):
        """Kill the command before its end, run it again, and return the row of the trial."""
        for attempt in count():
            planned = plan(self.seed, index, attempt)
            project = self.checkouts.copy(self.folder / f"{index}-{attempt}")
            if not self._kill(project, planned):
                project.remove()
                continue
            wrong, recovery = self._after_it(project)
            if wrong:
                wrong = f"trial {index}, attempt {attempt}, {planned}: {wrong}"
            else:
                project.remove()
            counted = recovery.counted | {"too late": attempt}
            return Row(
                f"{TEMP}: SIGKILL while {planned.moment}".replace("while any", "at any"), wrong, counted
            )
        return None

    def _kill(self, project, planned):
        """Start the command and kill it at the planned moment; return whether it had not ended before."""
        process = project.start(*COMMAND)
        wait_until(lambda: self._is_reached(project, planned.moment), process)
        deadline = time.monotonic() + planned.delay
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        with suppress(ProcessLookupError):
            (os.killpg if planned.target == "group" else os.kill)(process.pid, signal.SIGKILL)
        return process.wait() != 0

    def _is_reached(self, project, moment):
        if moment == "preparing":
            params = (project.folder / "params.yaml").read_bytes()
            return params != self.checkouts.user_files["params.yaml"]
        if moment == "copying":
            return any((project.folder / ".dvc/tmp/exps/standalone").glob("*"))
        return moment == "any moment" or project.beat() is not None

    def _after_it(self, project):
        """Return what is wrong, and how the command recovered."""
        wrong = [f"still running: {left}" if (left := project.orphans()) else ""]
        is_changed = bool(self.checkouts.wrong_user_files(project))
        if is_changed:  # DVC was killed after it had stashed the edits, before a stage started
            run_doctor(project)
        recovery = recover(project, COMMAND)
        wrong.append(recovery.finding)
        if is_changed and recovery.how == RECOVERED:
            recovery = Recovery(DOCTOR)
        if files := self.checkouts.wrong_user_files(project):
            recovery = Recovery(BLOCKED) if recovery.how == DOCTOR else recovery
            wrong.append(f"the user's files: {files}")
        wrong.append(self.checkouts.wrong_workspace(project))
        wrong.append(
            self.checkouts.wrong_experiments(project, self.checkouts.templates.reference["dvc.lock"])
        )
        wrong.append(self.checkouts.wrong_repro(project))
        wrong.append(leftovers(project))
        return "; ".join(filter(None, wrong)), recovery


def run(asked, folder, until):
    """Return a row for each trial."""
    experiments = Experiments(folder, asked.seed)
    indices = [asked.replay] if asked.replay is not None else list(range(asked.count))
    return run_trials(experiments.trial, indices, asked.jobs, until)
