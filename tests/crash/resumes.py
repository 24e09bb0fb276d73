"""SIGKILL of `learner resume` at a random moment: the same command again gives the untouched one's bytes."""

import random
from functools import cached_property

from kills import Plan, Trials, draw_moments
from trial_projects import COMMANDS, RESUME, difference


class ResumeTrials(Trials):
    """Trials in a project whose finished run is committed, and trained again after its second epoch."""

    def plan(self, index, attempt):
        """Return trial *index*; each *attempt* has its own moment."""
        trial = f"resumes {self.seed} {index}"
        draw = random.Random(trial)  # noqa: S311  no secret
        return Plan(RESUME, "done", "KILL", "group", **draw_moments(draw, trial, attempt))

    def begin(self, planned, folder):
        """Return the project of a trial in *folder*."""
        return self._committed.copied_to(folder)

    @cached_property
    def _committed(self):
        project = self.templates.done.copied_to(self.folder / "committed")
        project.ok("git", "add", "-A")
        project.ok("git", "commit", "-qm", "A finished run")
        return project

    @cached_property
    def _reference(self):
        project = self._committed.copied_to(self.folder / "untouched")
        project.ok(*COMMANDS[RESUME])
        return project.result() | _params(project)

    def _wrong_result(self, project, planned):
        return difference(project.result() | _params(project), self._reference)


def _params(project):
    return project.project.files("params.yaml")


def run(asked, folder, until):
    """Return a row for each trial."""
    indices = [asked.replay] if asked.replay is not None else range(asked.count)
    return ResumeTrials(folder, asked.seed, short=asked.short).run(indices, asked.jobs, until)
