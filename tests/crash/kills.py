"""A command is killed or told to stop at a random moment; the same again must come to the same end."""

import os
import random
import re
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from projects import COMMANDS, templates
from report import Row

from stages.checkpoints.file_names import CHECKPOINT_FOLDER, STEP_FOLDER, saved_epochs
from stages.runs.layout import FINISHED_FILE

FINISHED = re.compile(r"^save-model: [a-z -]+\s*$", re.MULTILINE)
"""The last that `learner run` says; after that, Python itself only ends."""
EXIT_CODES = {"TERM": 143, "INT": 130, "HUP": 129}
SHORT = (  # command, start, signal, target: what a short series is sure to have
    ("dvc repro", "training", "KILL", "group"),
    ("learner run", "training", "TERM", "group"),
    ("dvc repro", "training", "KILL", "dvc"),
    ("learner run", "training", "KILL", "group"),
    ("dvc exp run --temp", "training", "KILL", "group"),
    ("dvc repro", "training", "KILL", "stage"),
)


@dataclass(frozen=True)
class Plan:
    """One trial, as its number and the seed make it."""

    command: str
    start: str
    signal: str
    target: str
    moment: float
    """Of the time that the run takes when it is left alone."""
    second: float | None
    """The same for the run after it; None where that is left alone."""
    waits: bool
    """Whether the next run begins only when nothing of the first is left."""

    @property
    def label(self):
        """What it is counted under."""
        of_dvc = f" of {self.target}" if self.command == "dvc repro" else ""
        return f"{self.command}: SIG{self.signal}{of_dvc}"


def plan(seed, index, attempt, *, short=False):
    """The trial *index*; each *attempt* at it has a moment of its own."""
    draw = random.Random(f"{seed} {index}")  # noqa: S311  no secret
    command = draw.choices(list(COMMANDS), (45, 40, 15))[0]
    start = draw.choices(("training", "nothing"), (4, 1))[0]
    kind = draw.choices(("KILL", "TERM", "INT", "HUP"), (85, 5, 5, 5))[0]
    one = command == "dvc repro" and kind == "KILL"  # DVC itself lets a SIGINT pass, which its stage gets too
    target = draw.choice(("group", "stage", "dvc") if one else ("group",))
    if short:
        command, start, kind, target = SHORT[index % len(SHORT)]
    moments = random.Random(f"{seed} {index} {attempt}")  # noqa: S311  no secret
    moment, second = moments.random(), moments.random()
    if short:  # the machine may be busy, and each trial that is too late costs as much as one that is not
        moment *= 0.8
    return Plan(
        command, start, kind, target, moment, second if draw.random() < 0.25 else None, draw.random() < 0.5
    )


@dataclass(frozen=True)
class Outcome:
    """What came of a trial."""

    finding: str
    """What is wrong; empty where nothing is."""
    torn: bool
    """Whether the kill tore what DVC writes in place, before a stage of ours could begin, and took a hand."""


class Trials:
    """Does trials, several at a time, each in a project of its own."""

    def __init__(self, folder, seed, *, short):
        self.folder = folder
        self.seed = seed
        self.short = short
        self.templates = templates(folder.parent)
        self._seconds = {("dvc repro", "training"): self.templates.seconds}
        self._measuring = threading.Lock()

    def run(self, indices, jobs, until):
        """A row for each trial of *indices* that could be begun before *until*."""
        with ThreadPoolExecutor(jobs) as pool:
            rows = pool.map(lambda i: self.trial(i) if time.monotonic() < until else None, indices)
            return [row for row in rows if row]

    def trial(self, index):
        """Do it, as often as it takes until the kill comes before the end."""
        for attempt in count():
            planned = plan(self.seed, index, attempt, short=self.short)
            project = self.templates.start(planned.start, self.folder / f"{index}-{attempt}")
            broken = self._interrupt(project, planned)
            if broken is None:
                project.remove()
                continue
            finding = broken.finding
            if finding:
                finding = (
                    f"trial {index}, attempt {attempt}, {planned}: {finding}\n{project.output()[-1500:]}"
                )
            else:
                project.remove()
            return Row(planned.label, finding, {"too late": attempt, "by hand": int(broken.torn)})
        return None

    def _interrupt(self, project, planned):
        """What came of it; None where the command ended before the signal came."""
        code = self._signal_at(project, planned, planned.moment)
        if code == 0 or (planned.signal != "KILL" and FINISHED.search(project.output())):
            return None
        wrong = [self._wrong_code(project, planned, code), self._wrong_leftovers(project, planned)]
        if planned.waits and (left := project.orphans()):
            wrong.append(f"left alive: {left}")
        if planned.second is not None:
            self._signal_at(project, planned, planned.second, name="KILL")
        torn = planned.command == "dvc repro" and project.restore_truncated_files()
        ended = project.finish(*COMMANDS[planned.command])
        if ended != 0:
            wrong.append(f"the same command again ended with {ended}")
        if left := project.orphans():
            wrong.append(f"left alive at the end: {left}")
        wrong.append(self.templates.wrong(project, planned.command, planned.start))
        return Outcome("; ".join(filter(None, wrong)), torn)

    def _signal_at(self, project, planned, moment, name=None):
        """Start the command and send the signal at *moment*; the exit code, 0 if that was too late."""
        seconds = self._measure(planned)
        process, begun = project.start(*COMMANDS[planned.command]), time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            process.wait(moment * seconds)
            if name is None:
                self._seconds[planned.command, planned.start] = time.monotonic() - begun  # quicker by now
        if process.poll() is None:
            self._send(project, process, planned.target, signal.Signals[f"SIG{name or planned.signal}"])
        try:
            return process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait() and -100

    def _send(self, project, process, target, number):
        """To the stage's process if that is meant and there is one, else to DVC's or to all."""
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
        else:  # DVC's own, or what it makes of its stage's
            return "it hung" if code == -100 else ""
        return "" if code == wanted else f"exit code {code}, not {wanted}"

    def _was_early(self, project):
        """Whether Python was still starting, and the program could not yet say anything."""
        said = project.output()
        return not said or (said.rstrip().endswith("KeyboardInterrupt") and "frozen runpy" in said)

    def _wrong_leftovers(self, project, planned):
        """What a run that was told to stop must have left: a checkpoint, a whole log, and no model."""
        said, store = project.output(), project.store()
        if planned.command != "learner run" or planned.signal == "KILL" or self._was_early(project):
            return ""
        if not said.rstrip().splitlines()[-1].startswith(f"SIG{planned.signal}: ") or "Traceback" in said:
            return f"it did not say what ended it: {said[-300:]}"
        if "stopped after epoch" not in said:
            return ""
        saved = [*saved_epochs(store / STEP_FOLDER), *filter(None, saved_epochs(store / CHECKPOINT_FOLDER))]
        log = (store / "experiment.log").read_text()
        if not saved:
            return "no checkpoint"
        if (project.folder / "artifacts/model.mpk.gz").exists() or (store / FINISHED_FILE).exists():
            return "a final model"
        return "" if log.endswith("\n") else "the log ends in the middle of a line"

    def _measure(self, planned):
        """How long the untouched run takes, measured when it is first asked."""
        key = planned.command, planned.start
        with self._measuring:
            if key not in self._seconds:
                project = self.templates.start(planned.start, self.folder / "measured")
                begun = time.monotonic()
                project.ok(*COMMANDS[planned.command])
                self._seconds[key] = time.monotonic() - begun
                if wrong := self.templates.wrong(project, planned.command, planned.start):
                    raise AssertionError(f"{key}, untouched, is not as dvc repro is: {wrong}")
                project.remove()
            return self._seconds[key]


def run(asked, folder, until):
    """A row for each trial."""
    trials = Trials(folder, asked.seed, short=asked.short)
    indices = [asked.replay] if asked.replay is not None else range(asked.count)
    return trials.run(indices, asked.jobs, until)
