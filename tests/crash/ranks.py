"""SIGKILL of any process of a run on two ranks: the same command again gives the untouched run's bytes.

The ranks are those of `dvc repro` or `learner run`, or those of `torchrun`, after which `learner run` records
the results.
"""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

from kills import Plan, Trials, draw_moments
from trial_projects import COMMANDS, TORCHRUN, TWO_RANKS

TARGETS = ("rank 0", "rank 1", "launcher", "command", "group")


class RankTrials(Trials):
    """Trials on two ranks, whose targets are those of `TARGETS`."""

    params = TWO_RANKS

    def plan(self, index, attempt):
        """Return trial *index*; each *attempt* has its own moment."""
        trial = f"ranks {self.seed} {index}"
        draw = random.Random(trial)  # noqa: S311  no secret
        command, target = draw.choice(("dvc repro", "learner run", TORCHRUN)), TARGETS[index % len(TARGETS)]
        return RankPlan(command, "training", "KILL", target, **draw_moments(draw, trial, attempt))

    def _send(self, project, process, target, number):
        """Send the signal to the process that *target* selects; to the group if it has not started."""
        pids = {"command": process.pid, **find_processes(project)}
        with suppress(ProcessLookupError):
            if target in pids:
                os.kill(pids[target], number)
            else:
                os.killpg(process.pid, signal.SIGKILL)

    def _wrong_code(self, project, planned, code):
        return "it did not end" if code == -100 else ""

    def _wrong_result(self, project, planned):
        code = project.finish(*COMMANDS["learner run"]) if planned.command == TORCHRUN else 0
        return f"the next run ended with {code}" if code else super()._wrong_result(project, planned)


class RankPlan(Plan):
    """A trial on two ranks."""

    @property
    def label(self):
        """Return the name of the row in the table."""
        return f"{self.command}: SIGKILL of {self.target}"


def find_processes(project):
    """Return the processes of the ranks of *project*, and of their launcher, by their names."""
    found = {}
    for pid, line in project.processes().items():
        if " pipeline stage fit" not in line or "rank_process" in line:
            continue
        with suppress(OSError):
            names = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            ranks = [name.partition(b"=")[2].decode() for name in names if name.startswith(b"RANK=")]
            if ranks:
                found[f"rank {ranks[0]}"] = pid
                found["launcher"] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def run(asked, folder, until):
    """Return a row for each trial."""
    indices = [asked.replay] if asked.replay is not None else range(asked.count)
    return RankTrials(folder, asked.seed, short=asked.short).run(indices, asked.jobs, until)
