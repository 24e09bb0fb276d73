"""Kills of `learner sweep` with each engine, of one of its points, and of all its processes."""

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count

from checkouts import EPOCHS, checkouts, leftovers, wait_until
from recovery import LEARNER, recover
from report import Row
from workers import run_trials

from stages.system.processes import parent_of

GRID = ("-S", "fit.seed=42,43")
RATES = ("-S", "build_learner.optimizer.learning_rate=interval(0.001,0.01)", "--trials", "3")
ENGINES = {"dask": "prefect_dask", "ray": "prefect_ray"}
"""The engines besides threads, each with a package that it needs."""
MODES = {"grid": GRID, "asha": (*GRID, "--stop", "asha"), "tpe": (*RATES, "--search", "tpe")}
MODES |= {name: (*GRID, "--engine", name) for name, package in ENGINES.items() if find_spec(package)}
"""The options of each kind of sweep."""
TARGETS = ("sweep", "point", "everything")
MOMENTS = {"starting": 4.0, "training": 3.0, "collecting": 0.3}
"""The states, and the seconds within which a kill follows each."""


@dataclass(frozen=True)
class Plan:
    """A trial."""

    index: int
    mode: str
    target: str
    moment: str
    delay: float


def plan(seed, index, attempt):
    """Return trial *index*; each *attempt* has its own delay."""
    draw = random.Random(f"{seed} {index}")  # noqa: S311  not a secret
    moment = draw.choices(list(MOMENTS), (1, 2, 1))[0]
    delay = random.Random(f"{seed} {index} {attempt}").uniform(0, MOMENTS[moment])  # noqa: S311
    mode = [*MODES][index // len(TARGETS) % len(MODES)]
    return Plan(index, mode, TARGETS[index % len(TARGETS)], moment, delay)


def command_of(mode):
    """Return the command of a sweep of the kind *mode*."""
    return (*LEARNER, "sweep", "--jobs", "2", "-S", EPOCHS, *MODES[mode])


class Sweeps:
    """Trials, each in its own edited checkout."""

    def __init__(self, folder, seed):
        self.seed = seed
        self.folder = folder
        self.checkouts = checkouts(folder.parent)
        made = self.checkouts.templates
        grid = {made.reference["dvc.lock"], (made.other.folder / "dvc.lock").read_bytes()}
        self.locks = dict.fromkeys(("grid", *ENGINES), grid)

    def trial(self, index):
        """Kill the sweep before its end, run it again, and return the row of the trial."""
        for attempt in count():
            planned = plan(self.seed, index, attempt)
            project = self.checkouts.copy(self.folder / f"{index}-{attempt}")
            if not self._kill(project, planned):
                project.remove()
                continue
            wrong, recovery = self._after_it(project, planned.mode)
            if wrong:
                wrong = f"trial {index}, attempt {attempt}, {planned}: {wrong}"
            else:
                project.remove()
            kind = f"sweep, {planned.mode}: SIGKILL of {planned.target}"
            return Row(kind, wrong, recovery.counted | {"too late": attempt})
        return None

    def _kill(self, project, planned):
        """Start the sweep and kill at the planned moment; return whether it had not ended before."""
        process = project.start(*command_of(planned.mode))
        reached = wait_until(lambda: self._is_reached(project, planned.moment), process)
        time.sleep(planned.delay if reached else 0)
        victims = self._victims(project, process, planned.target) if process.poll() is None else []
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()  # if one point is killed, the sweep reports it after the other has ended
        return bool(victims)

    def _is_reached(self, project, moment):
        if moment == "starting":
            return any((project.folder / ".runs/sweep").glob("*.copy"))
        if moment == "training":
            with suppress(FileNotFoundError):  # a folder may be removed during the search
                return any(project.folder.glob(".runs/**/heartbeat.json"))
            return False
        return bool(project.experiments())

    def _victims(self, project, process, target):
        processes = project.processes()
        if target == "everything":
            return list(processes)
        servers = {pid for pid, line in processes.items() if "pipeline.sweep.point_server" in line}
        points = {_group_of(pid) for pid in servers if parent_of(pid) in servers}  # forks of a server
        groups = {process.pid} if target == "sweep" else set(sorted(filter(None, points))[:1])
        return [pid for pid in processes if _group_of(pid) in groups]

    def _untouched(self, mode):
        """Return the dvc.lock of each experiment of a sweep of the kind *mode* that nothing kills."""
        if mode not in self.locks:
            project = self.checkouts.copy(self.folder / f"untouched-{mode}")
            project.ok(*command_of(mode))
            self.locks[mode] = set(project.experiments())
            project.remove()
        return self.locks[mode]

    def _wrong_experiments(self, project, mode):
        """Return how the experiments differ from those of an untouched sweep.

        Whether asha stops a point depends on the points that have ended, so each may be trained to the end.
        """
        found, wanted = set(project.experiments()), self._untouched(mode)
        if mode == "asha" and len(found) == len(wanted):
            return "" if found <= wanted | self.locks["grid"] else "an experiment of asha differs"
        return self.checkouts.wrong_experiments(project, *wanted)

    def _after_it(self, project, mode):
        """Return what is wrong, and how the sweep recovered."""
        wrong = [f"still running: {left}" if (left := project.orphans()) else ""]
        recovery = recover(project, command_of(mode))
        wrong.append(recovery.finding)
        if files := self.checkouts.wrong_user_files(project):
            wrong.append(f"the user's files: {files}")
        wrong.append(self.checkouts.wrong_workspace(project))
        wrong.append(self._wrong_experiments(project, mode))
        wrong.append(self.checkouts.wrong_repro(project))
        wrong.append(leftovers(project))
        return "; ".join(filter(None, wrong)), recovery


def _group_of(pid):
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def run(asked, folder, until):
    """Return a row for each trial."""
    sweeps = Sweeps(folder, asked.seed)
    indices = [asked.replay] if asked.replay is not None else list(range(asked.count))
    return run_trials(sweeps.trial, indices, asked.jobs, until)
