"""SIGKILL of `learner run`, or of a stage under `dvc repro`: the same command again needs no other remedy."""

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import replace

from kills import Plan, Trials, draw_moments


class StageTrials(Trials):
    """Trials in which code of this project runs when the signal comes, and DVC itself is not killed."""

    def trial(self, index):
        """Run trial *index*; a remedy that it needed is a finding."""
        row = super().trial(index)
        if row.counted["with doctor"] and not row.finding:
            return replace(row, finding=f"trial {index} needed `learner doctor --fix`")
        return row

    def plan(self, index, attempt):
        """Return trial *index*; each *attempt* has its own moment."""
        trial = f"stages {self.seed} {index}"
        draw = random.Random(trial)  # noqa: S311  no secret
        command = draw.choice(("dvc repro", "learner run"))
        start = draw.choices(("training", "empty"), (4, 1))[0]
        target = "stage" if command == "dvc repro" else "group"
        return Plan(command, start, "KILL", target, **draw_moments(draw, trial, attempt))

    def _send(self, project, process, target, number):
        """Send the signal to the group, or to the stage, which may have to start first."""
        if target == "group":
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            return
        while process.poll() is None:
            stages = [pid for pid, line in project.processes().items() if is_stage(line)]
            if stages:
                with suppress(ProcessLookupError):
                    os.kill(stages[-1], signal.SIGKILL)
                return
            time.sleep(0.01)


def is_stage(line):
    """Return whether the command *line* is that of the process of a stage, and not of the shell around it."""
    return " pipeline stage " in line and not line.startswith(("/bin/sh", "sh ", "/bin/bash", "bash "))


def run(asked, folder, until):
    """Return a row for each trial."""
    indices = [asked.replay] if asked.replay is not None else range(asked.count)
    return StageTrials(folder, asked.seed, short=asked.short).run(indices, asked.jobs, until)
