"""Signals at a random moment of a command: the same command again must give the untouched run's bytes."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from report import Row
from trial_projects import COMMANDS, TEMP, templates

from stages.runs.file_names import CHECKPOINT_FOLDER, STEP_FOLDER, list_epochs
from stages.runs.layout import FINISHED_FILE

FINISHED = re.compile(r"^save-model: [a-z -]+\s*$", re.MULTILINE)
"""The last line that `learner run` prints; after it, only Python itself shuts down."""
EXIT_CODES = {"TERM": 143, "INT": 130, "HUP": 129}
SHORT = (  # command, start, signal, target of the trials in a short series
    ("dvc repro", "training", "KILL", "group"),
    ("learner run", "training", "TERM", "group"),
    ("dvc repro", "training", "KILL", "dvc"),
    ("learner run", "training", "KILL", "group"),
    ("dvc exp run --temp", "training", "KILL", "group"),
    ("dvc repro", "training", "KILL", "stage"),
)


@dataclass(frozen=True)
class Plan:
    """One trial, which its number and the seed determine."""

    command: str
    start: str
    signal: str
    target: str
    moment: float
    """The moment of the signal, as a share of the duration of the untouched run."""
    second: float | None
    """The same for a second kill in the next run; None for no second kill."""
    waits: bool
    """Whether the next run starts only after all processes of the first have ended."""

    @property
    def label(self):
        """Return the name of the row in the table."""
        of_dvc = f" of {self.target}" if self.command == "dvc repro" else ""
        return f"{self.command}: SIG{self.signal}{of_dvc}"


def plan(seed, index, attempt, *, short=False):
    """Return trial *index*; each *attempt* has its own moment."""
    draw = random.Random(f"{seed} {index}")  # noqa: S311  no secret
    command = draw.choices(("dvc repro", "learner run", TEMP), (45, 40, 15))[0]
    start = draw.choices(("training", "empty"), (4, 1))[0]
    kind = draw.choices(("KILL", "TERM", "INT", "HUP"), (85, 5, 5, 5))[0]
    one = command == "dvc repro" and kind == "KILL"  # DVC ignores a SIGINT that its stage receives too
    target = draw.choice(("group", "stage", "dvc") if one else ("group",))
    if short:
        command, start, kind, target = SHORT[index % len(SHORT)]
    moments = random.Random(f"{seed} {index} {attempt}")  # noqa: S311  no secret
    moment, second = moments.random(), moments.random()
    if short:  # the machine may be busy, and a trial that is too late takes as long as another
        moment *= 0.8
    return Plan(
        command, start, kind, target, moment, second if draw.random() < 0.25 else None, draw.random() < 0.5
    )


def draw_moments(draw, trial, attempt):
    """Return the moments of the kills of *trial*, the first of *attempt*, and whether to wait in between."""
    second = draw.random() if draw.random() < 0.25 else None
    moment = random.Random(f"{trial} {attempt}").random()  # noqa: S311  no secret
    return {"moment": moment, "second": second, "waits": draw.random() < 0.5}


@dataclass(frozen=True)
class Outcome:
    """The result of a trial."""

    finding: str
    """What is wrong; empty if nothing is."""
    needed_doctor: bool
    """Whether `learner doctor --fix` ran: DVC had truncated its files, or plain `dvc exp run` failed."""


class Trials:
    """Trials that run concurrently, each in its own project."""

    params = ()
    """The params of the trials besides those of all parts."""

    def __init__(self, folder, seed, *, short):
        self.folder = folder
        self.seed = seed
        self.short = short
        self.templates = templates(folder.parent, *self.params)
        self._seconds = {("dvc repro", "training"): self.templates.seconds}
        self._measuring = threading.Lock()

    def run(self, indices, jobs, until):
        """Return a row for each trial of *indices* that started before *until*."""
        with ThreadPoolExecutor(jobs) as pool:
            rows = pool.map(lambda i: self.trial(i) if time.monotonic() < until else None, indices)
            return [row for row in rows if row]

    def trial(self, index):
        """Run trial *index*, repeated until the signal comes before the end of the command."""
        for attempt in count():
            planned = self.plan(index, attempt)
            project = self.begin(planned, self.folder / f"{index}-{attempt}")
            outcome = self._interrupt(project, planned)
            if outcome is None:
                project.remove()
                continue
            finding = outcome.finding
            if finding:
                finding = (
                    f"trial {index}, attempt {attempt}, {planned}: {finding}\n{project.output()[-1500:]}"
                )
            else:
                project.remove()
            counts = {
                "too late": attempt,
                "with doctor": outcome.needed_doctor,
            }
            return Row(planned.label, finding, {name: int(count) for name, count in counts.items()})
        return None

    def plan(self, index, attempt):
        """Return trial *index*."""
        return plan(self.seed, index, attempt, short=self.short)

    def begin(self, planned, folder):
        """Return the project of a trial in *folder*."""
        return self.templates.start(planned.start, folder)

    def _interrupt(self, project, planned):
        """Return the result; None if the command ended before the signal."""
        code = self._signal_at(project, planned, planned.moment)
        if code == 0 or (planned.signal != "KILL" and FINISHED.search(project.output())):
            return None
        wrong = [self._wrong_code(project, planned, code), self._wrong_leftovers(project, planned)]
        if planned.waits and (left := project.orphans()):
            wrong.append(f"still running: {left}")
        if planned.second is not None:
            self._signal_at(project, planned, planned.second, name="KILL")
        needed_doctor = planned.command == "dvc repro" and project.restore_truncated_files()
        ended = project.finish(*COMMANDS[planned.command])
        if ended != 0 and planned.command == TEMP:  # no code of this project had run yet
            needed_doctor = True
            project.finish(sys.executable, "-m", "pipeline", "doctor", "--fix")
            ended = project.finish(*COMMANDS[planned.command])
        if ended != 0:
            wrong.append(f"the same command again ended with {ended}")
        if left := project.orphans():
            wrong.append(f"still running at the end: {left}")
        wrong.append(self._wrong_result(project, planned))
        return Outcome("; ".join(filter(None, wrong)), needed_doctor)

    def _signal_at(self, project, planned, moment, name=None):
        """Start the command, send the signal at *moment*, and return the exit code, 0 if it was too late."""
        seconds = self._measure(planned)
        process, begun = project.start(*COMMANDS[planned.command]), time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            process.wait(moment * seconds)
            if name is None:
                self._seconds[planned.command, planned.start] = (
                    time.monotonic() - begun
                )  # the command is faster than when it was measured
        if process.poll() is None:
            self._send(project, process, planned.target, signal.Signals[f"SIG{name or planned.signal}"])
        try:
            return process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait() and -100

    def _send(self, project, process, target, number):
        """Send the signal to the process of the stage, to DVC, or to the group, as *target* selects."""
        stages = [pid for pid, line in project.processes().items() if " pipeline stage " in line]
        with suppress(ProcessLookupError):
            if target == "group" or (target == "stage" and not stages):
                os.killpg(process.pid, number)
            else:
                os.kill(process.pid if target == "dvc" else stages[-1], number)

    def _wrong_code(self, project, planned, code):
        if planned.command == "learner run":
            number = signal.Signals[f"SIG{planned.signal}"]
            wanted = -number if self._was_early(project) else EXIT_CODES.get(planned.signal, -9)
        elif planned.signal == "KILL" and planned.target != "stage":
            wanted = -9
        else:  # the exit code of DVC
            return "it did not end" if code == -100 else ""
        return "" if code == wanted else f"exit code {code}, not {wanted}"

    def _was_early(self, project):
        """Return whether Python was still starting, so that the program could not print anything."""
        text = project.output()
        return not text or (text.rstrip().endswith("KeyboardInterrupt") and "frozen runpy" in text)

    def _wrong_leftovers(self, project, planned):
        """Return what is wrong after a signal: there must be a checkpoint, a complete log and no model."""
        text, store = project.output(), project.store()
        if planned.command != "learner run" or planned.signal == "KILL" or self._was_early(project):
            return ""
        if not text.rstrip().splitlines()[-1].startswith(f"SIG{planned.signal}: ") or "Traceback" in text:
            return f"it did not report the signal: {text[-300:]}"
        if "stopped after epoch" not in text:
            return ""
        saved = [*list_epochs(store / STEP_FOLDER), *filter(None, list_epochs(store / CHECKPOINT_FOLDER))]
        log = (store / "experiment.log").read_text()
        if not saved:
            return "no checkpoint"
        if (project.folder / "artifacts/model.mpk.gz").exists() or (store / FINISHED_FILE).exists():
            return "a final model"
        return "" if log.endswith("\n") else "the log ends in the middle of a line"

    def _wrong_result(self, project, planned):
        """Return how *project* differs from an untouched one after the command; empty if it does not."""
        return self.templates.wrong(project, planned.command, planned.start)

    def _measure(self, planned):
        """Return the duration of the untouched run in seconds, measured at the first call."""
        key = planned.command, planned.start
        with self._measuring:
            if key not in self._seconds:
                project = self.begin(planned, self.folder / f"measured-{len(self._seconds)}")
                begun = time.monotonic()
                project.ok(*COMMANDS[planned.command])
                self._seconds[key] = time.monotonic() - begun
                if wrong := self._wrong_result(project, planned):
                    raise AssertionError(f"the untouched run of {key} differs from dvc repro: {wrong}")
                project.remove()
            return self._seconds[key]


def run(asked, folder, until):
    """Return a row for each trial."""
    trials = Trials(folder, asked.seed, short=asked.short)
    indices = [asked.replay] if asked.replay is not None else range(asked.count)
    return trials.run(indices, asked.jobs, until)
