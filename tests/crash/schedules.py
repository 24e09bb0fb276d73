"""Kills of `learner serve` and of its runs, in the workspace and as experiments."""

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from checkouts import EPOCHS, checkouts, leftovers, wait_until, without_cache, wrong_cache
from prefect_servers import Api, running_server
from recovery import BLOCKED, DOCTOR, LEARNER, RECOVERED, Recovery, run_doctor
from report import Row
from trial_projects import difference
from workers import run_trials

MODES, VICTIMS, MOMENTS = ("workspace", "experiment"), ("both", "run", "serve"), ("training", "starting")
DELAYS = {"starting": 4.0, "training": 1.0}
"""The seconds within which a kill follows each state."""


@dataclass(frozen=True)
class Plan:
    """A trial."""

    index: int
    mode: str
    victim: str
    moment: str
    delay: float
    overrides_again: bool
    """Whether the run after the kill has the same overrides, or none."""


def plan(seed, index, attempt):
    """Return trial *index*; each *attempt* has its own delay."""
    draw = random.Random(f"{seed} {index}")  # noqa: S311  not a secret
    mode = MODES[index % 2]
    victim, moment = draw.choices(VICTIMS, (2, 1, 1))[0], draw.choices(MOMENTS, (2, 1))[0]
    if index < len(MODES):
        victim, moment = "both", "training"
    delay = random.Random(f"{seed} {index} {attempt}").uniform(0, DELAYS[moment])  # noqa: S311
    return Plan(index, mode, victim, moment, delay, mode == "experiment" or index % 4 == 2)


class Schedules:
    """Trials, each with its own checkout and deployment, on one server."""

    def __init__(self, folder, seed, api):
        self.seed = seed
        self.api = api
        self.folder = folder
        self.checkouts = checkouts(folder.parent)

    def trial(self, index):
        """Kill a scheduled run, start the next one, and return the row of the trial."""
        for attempt in count():
            planned = plan(self.seed, index, attempt)
            served = Serve(
                self.checkouts.copy(self.folder / f"{index}-{attempt}"), self.api, planned, attempt
            )
            try:
                killed = served.start_and_kill()
                wrong, recovery = self._after_it(served, killed) if killed else ("", None)
            finally:
                served.end()
            if killed is None:
                served.project.remove()
                continue
            wrong = "; ".join(filter(None, [wrong, self._wrong_at_the_end(served)]))
            if wrong:
                wrong = f"trial {index}, attempt {attempt}, {planned}: {wrong}"
            else:
                served.project.remove()
            kind = f"serve, {planned.mode}: SIGKILL of {planned.victim}".replace(
                "of both", "of serve and run"
            )
            return Row(kind, wrong, recovery.counted | {"too late": attempt})
        return None

    def _after_it(self, served, killed):
        """Start the next run; return what is wrong, and how it recovered."""
        wrong = [f"still running: {left}" if (left := served.strays()) else ""]
        served.start()
        state = served.run_again()
        recovery = Recovery(RECOVERED)
        if state != "Completed":
            run_doctor(served.project)
            again = served.run_again()
            recovery = Recovery(
                DOCTOR if again == "Completed" else BLOCKED, f"{state}, then {again}: {served.output()}"
            )
        wrong.append(recovery.finding)
        if not wait_until(lambda: self.api.has_ended(killed)):
            wrong.append(f"the killed run is still shown as {self.api.state(killed)}")
        return "; ".join(filter(None, wrong)), recovery

    def _wrong_at_the_end(self, served):
        """Return what is wrong after serve has ended."""
        project, made = served.project, self.checkouts
        wrong = [leftovers(project)]
        if served.planned.mode == "experiment":
            reference = made.templates.reference["dvc.lock"]
            wrong += [made.wrong_workspace(project), made.wrong_experiments(project, reference)]
        else:
            wrong.append(self._wrong_outputs(project, served.planned))
        if served.planned.mode == "experiment" or not served.planned.overrides_again:
            if files := made.wrong_user_files(project):
                wrong.append(f"the user's files: {files}")
            wrong.append(made.wrong_repro(project))
        return "; ".join(filter(None, wrong))

    def _wrong_outputs(self, project, planned):
        wanted = self.checkouts.templates.reference if planned.overrides_again else self.checkouts.repro
        found = project.result()
        wrong = difference(without_cache(found), without_cache(wanted)) or wrong_cache(found, wanted)
        return f"the workspace: {wrong}" if wrong else ""


class Serve:
    """A checkout in which `learner serve` runs."""

    def __init__(self, project, api, planned, attempt):
        self.project, self.api, self.planned = project, api, planned
        self.name = f"trial-{planned.index}-{attempt}"
        project.environment |= {
            "PREFECT_API_URL": api.address,
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            "LEARNER_GOODBYE_SECONDS": "3",
        }
        self.process = None

    def start(self):
        """Start `learner serve`, if it does not run."""
        if self.process and self.process.poll() is None:
            return
        self.process = self.project.start(*LEARNER, "serve", "--name", self.name, f"--{self.planned.mode}")
        assert wait_until(lambda: "serving learner/" in self.output(), self.process), self.output()

    def start_and_kill(self):
        """Start a run with the overrides and kill it; return its id, or None if it had ended before."""
        self.start()
        run = self.api.start(self.name, overrides=[EPOCHS])
        reached = (
            (lambda: self.project.beat() is not None) if self.planned.moment == "training" else self._runs
        )
        assert wait_until(reached, self.process), self.output()
        time.sleep(self.planned.delay)
        if self.api.has_ended(run):
            return None
        self._kill()
        return run

    def run_again(self):
        """Start the next run and return its final state."""
        run = self.api.start(self.name, overrides=[EPOCHS] if self.planned.overrides_again else [])
        wait_until(lambda: self.api.has_ended(run))
        return self.api.state(run)

    def strays(self):
        """Return the processes other than serve that do not end."""
        own = {self.process.pid} if self.process.poll() is None else set()
        wait_until(lambda: not self.project.processes().keys() - own)
        return {pid: line for pid, line in self.project.processes().items() if pid not in own}

    def end(self):
        """Stop `learner serve`, and kill the processes that it leaves."""
        if self.process.poll() is None:
            self.process.terminate()
            wait_until(lambda: self.process.poll() is not None)
        self._kill_all(self.project.processes())
        self.process.wait()

    def output(self):
        """Return the output of `learner serve` and its runs."""
        return self.project.output()

    def _runs(self):
        return any(pid != self.process.pid for pid in self.project.processes())

    def _kill(self):
        others = [pid for pid in self.project.processes() if pid != self.process.pid]
        if self.planned.victim != "run":
            self._kill_all([self.process.pid])
            self.process.wait()
        if self.planned.victim != "serve":
            self._kill_all(others)

    def _kill_all(self, pids):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def run(asked, folder, until):
    """Return a row for each trial."""
    indices = [asked.replay] if asked.replay is not None else list(range(asked.count))
    home = folder / "server"
    home.mkdir()
    with running_server(home) as server:
        schedules = Schedules(folder, asked.seed, Api(server.address))
        return run_trials(schedules.trial, indices, asked.jobs, until)
