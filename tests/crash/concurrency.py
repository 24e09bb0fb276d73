"""Two concurrent commands: one completes, the other reports why it cannot, and the result is that of one."""

import os
import random
import re
import signal
import time
from contextlib import suppress

from report import Row
from trial_projects import COMMANDS, TEMP, templates
from waiting import LIMIT_SECONDS
from workers import run_trials

from stages.runs.layout import FINISHED_FILE

PAUSED_PAIRS = (  # the command that is paused in its training, and the one that starts then
    ("dvc repro", "learner run"),
    (TEMP, TEMP),
    ("dvc repro", "dvc repro"),
    ("learner run", "dvc repro"),
    ("learner run", "learner run"),
    (TEMP, "dvc repro"),
)
WHY = re.compile(
    r"in use by pid \d+|is busy, it is being blocked by|Unable to acquire lock|has been locked by|"
    r"could not be acquired|is locked"
)
PAUSED_EVERY = 3
"""After the pairs above, one trial in so many is such a pair; in the others both start at any moment."""


class ConcurrentCommands:
    """Trials of two commands, each in its own project."""

    def __init__(self, folder):
        self.folder = folder
        self.templates = templates(folder.parent)

    def trial(self, planned):
        """Run one pair of commands and return the row of the trial."""
        index, first, second, delay = planned
        project = self.templates.start("training", self.folder / str(index))
        if delay is None:
            kind, wrong = f"{second} during {first}", self._run_paused_pair(project, first, second)
        else:
            kind, wrong = "two at any moment", self._run_any_moment(project, first, second, delay)
        if not wrong:
            project.remove()
        return Row(kind, f"trial {index}, {planned}: {wrong}" if wrong else "")

    def _run_paused_pair(self, project, first, second):
        """Pause the first command in its training while the second runs; return what is wrong."""
        process = project.start(*COMMANDS[first], log="first.log")
        if not (pid := self._pause_in_training(project, process)):
            return "the first ended before it could be paused"
        code = project.finish(*COMMANDS[second])
        wrong = [] if code > 0 and WHY.search(project.output()) else [f"the second ended with {code}"]
        if second == "learner run" and code != 1:
            wrong.append(f"its exit code is {code}")
        if "Traceback" in project.output():
            wrong.append("it printed a traceback")
        wrong = [f"{each}: {project.output()[-1000:]}" for each in wrong]
        os.kill(pid, signal.SIGCONT)
        if code := process.wait(LIMIT_SECONDS):
            wrong.append(f"the first ended with {code}: {project.output('first.log')[-1000:]}")
        wrong.append(self.templates.wrong(project, first, "training"))
        if left := project.orphans():
            wrong.append(f"still running: {left}")
        return "; ".join(filter(None, wrong))

    def _pause_in_training(self, project, process):
        """Return the training process, paused; None if the command has ended."""
        while process.poll() is None:
            beat = project.beat()
            if beat and not (project.store() / FINISHED_FILE).exists():
                with suppress(ProcessLookupError):
                    os.kill(beat["pid"], signal.SIGSTOP)
                    return beat["pid"]
            time.sleep(0.002)
        return None

    def _run_any_moment(self, project, first, second, delay):
        """Start the second command *delay* seconds after the first; return what is wrong."""
        one = project.start(*COMMANDS[first], log="first.log")
        time.sleep(delay)
        code = project.finish(*COMMANDS[second])
        codes = {"first.log": one.wait(LIMIT_SECONDS), "log": code}
        wrong = [] if 0 in codes.values() else ["neither command succeeded"]
        wrong += [
            f"ended with {code}: {project.output(log)[-1000:]}"
            for log, code in codes.items()
            if code and (not WHY.search(project.output(log)) or "Traceback" in project.output(log))
        ]
        if code := project.finish(*COMMANDS["dvc repro"]):
            wrong.append(f"dvc repro after it ended with {code}: {project.output()[-1000:]}")
        wrong.append(self.templates.wrong(project, "dvc repro", "training"))
        locks = set(project.experiments()) - {self.templates.reference["dvc.lock"]}
        wrong += ["the dvc.lock of an experiment differs"] if locks else []
        return "; ".join(filter(None, wrong))


def run(asked, folder, until):
    """Return a row for each trial."""
    draw = random.Random(asked.seed)  # noqa: S311  no secret
    plans = [(index, *PAUSED_PAIRS[index % len(PAUSED_PAIRS)], None) for index in range(asked.count)]
    for index in range(len(PAUSED_PAIRS), asked.count):
        pair = draw.choices(list(COMMANDS), k=2)
        if index % PAUSED_EVERY:
            plans[index] = (index, *pair, draw.uniform(0, 3))
    if asked.replay is not None:
        plans = plans[asked.replay :][:1]
    pairs = ConcurrentCommands(folder)
    return run_trials(pairs.trial, plans, asked.jobs, until)
