"""Deletions while fit trains: the run fails and records nothing, or ends with the untouched run's bytes."""

import os
import random
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from checkouts import leftovers, without_cache
from damage import read_stages
from file_damage import delete_tree
from recovery import RECOVERED, Recovery, recover
from report import Row
from small_run import STEPS, Counter, SmallRun, prepare, run_in_child
from trial_projects import COMMANDS, difference, templates
from workers import run_trials

from stages.runs.layout import FINISHED_FILE

COMMAND_EVERY = 8
"""One trial in so many is a command; the others are small runs in a fork of this process."""
IN_SMALL_RUN = {  # the files to delete in a small run, as patterns relative to its folder
    "the run store": (".runs/*[0-9a-f]",),
    "all run stores": (".runs",),
    "a checkpoint": (".runs/*/steps/*", ".runs/*/checkpoint/*"),
    "a log": (".runs/*/train/epoch-1/*.log", ".runs/*/valid/epoch-1/*.log"),
    "the logs of an epoch": (".runs/*/train/epoch-1",),
    "the outputs": ("artifacts",),
    "the data": ("data",),
}
IN_PROJECT = IN_SMALL_RUN | {"DVC's temporary files": (".dvc/tmp",)}
OPTIONAL = ("artifacts", "data")
"""Folders that a successful run need not restore if they were deleted; the next command does."""


@dataclass(frozen=True)
class Deletion:
    """A trial."""

    index: int
    what: str
    moment: float
    """The moment of the training, from 0 to 1."""
    choice: float
    command: str | None
    """The command; None for a small run."""


def plan(seed, index):
    """Return trial *index*."""
    draw = random.Random(f"{seed} {index}")  # noqa: S311  not a secret
    number, is_command = divmod(index, COMMAND_EVERY)
    command = draw.choice(("dvc repro", "learner run")) if is_command == COMMAND_EVERY - 1 else None
    names = list(IN_PROJECT if command else IN_SMALL_RUN)
    what = names[(number if command else index) % len(names)]
    return Deletion(index, what, draw.random(), draw.random(), command)


class _Deleting(Counter):
    """A renderer that deletes files at a step, or at the first step after it at which they exist."""

    def __init__(self, folder, planned):
        super().__init__()
        self._folder, self._planned, self._is_done = folder, planned, False

    def step(self, progress):
        super().step(progress)
        if not self._is_done and self.steps >= 1 + int(self._planned.moment * (STEPS - 1)):
            self._is_done = delete(self._folder, IN_SMALL_RUN, self._planned)


class Deletions:
    """Runs in which files are deleted."""

    def __init__(self, folder, *, commands):
        self.folder = folder
        self.small = folder / "small"
        self.small.mkdir()
        prepare(self.small)
        untouched = SmallRun(self.small / "untouched")
        untouched.begin()
        assert run_in_child(untouched.fit)[0] == 0
        self.reference = untouched.outputs()
        self.templates = templates(folder.parent) if commands else None

    def trial(self, planned):
        """Delete files during a run, do the run again, and return the row of the trial."""
        wrong, recovery, kind = self._run_command(planned) if planned.command else self._run_small(planned)
        wrong = f"trial {planned.index}, {planned}: {wrong}" if wrong else ""
        return Row(f"{kind}: {planned.what} deleted", wrong, recovery.counted)

    def _run_small(self, planned):
        run = SmallRun(self.folder / str(planned.index))
        shutil.copytree(self.small / "data", run.folder / "data")
        run.paths = replace(run.paths, data=run.folder / "data", learner=self.small / "learner")
        run.begin()
        run.counter = _Deleting(run.folder, planned)
        code, _, text = run_in_child(run.fit)
        outputs, wrong = run.outputs(), []
        if code == 0:
            wrong.append(difference(outputs, self.reference))
        elif code != 1 or not text or outputs:
            wrong.append(f"it ended with {code}, and left {sorted(outputs)[:5]}: {text[-600:]}")
        shutil.copytree(self.small / "data", run.folder / "data", dirs_exist_ok=True)
        run.paths.artifacts.mkdir(exist_ok=True)
        run.counter = Counter()
        again, _, text = run_in_child(run.fit)
        recovery = Recovery("blocked", text) if again else Recovery(RECOVERED)
        wrong += [recovery.finding, difference(run.outputs(), self.reference)]
        if not (wrong := "; ".join(dict.fromkeys(filter(None, wrong)))):
            shutil.rmtree(run.folder)
        return wrong, recovery, "fit"

    def _run_command(self, planned):
        project = self.templates.start("training", self.folder / str(planned.index))
        before = read_stages(project.folder / "dvc.lock")
        command = COMMANDS[planned.command]
        process = project.start(*command)
        if pid := self._pause_in_training(project, process, planned.moment):
            delete(project.folder, IN_PROJECT, planned)
            os.kill(pid, signal.SIGCONT)
        code, text = process.wait(180), project.output()
        wrong = (
            [self._wrong_after_it(project, code, text, before)] if pid else ["it ended before it was paused"]
        )
        recovery = recover(project, command)
        wrong += [recovery.finding, self.templates.wrong(project, planned.command, "training")]
        wrong.append(leftovers(project))
        if not (wrong := "; ".join(filter(None, wrong))):
            project.remove()
        return wrong, recovery, planned.command

    def _pause_in_training(self, project, process, moment):
        """Return the training process, paused at *moment*; None if the command has ended."""
        epoch = 1 + int(moment * 3)
        while process.poll() is None:
            beat = project.beat()
            if beat and beat.get("epoch", 1) >= epoch and not (project.store() / FINISHED_FILE).exists():
                time.sleep(0.1 * (moment * 3 % 1))
                with suppress(ProcessLookupError):
                    os.kill(beat["pid"], signal.SIGSTOP)
                    return beat["pid"]
            time.sleep(0.002)
        return None

    def _wrong_after_it(self, project, code, text, before):
        """Return what is wrong after the run in which files were deleted."""
        if code:
            recorded = read_stages(project.folder / "dvc.lock").keys() - before.keys()
            wrong = [f"recorded despite a failure: {recorded}"] if recorded - {"fit"} else []
            if "fit" in recorded:  # a later stage may fail, but what fit recorded must be right
                wanted = read_stages(self.templates.done.folder / "dvc.lock")["fit"]
                wrong += (
                    []
                    if read_stages(project.folder / "dvc.lock")["fit"] == wanted
                    else ["the record of fit differs"]
                )
            return "; ".join([*wrong, *(["a traceback: " + text[-900:]] if "Traceback" in text else [])])
        found, wanted = without_cache(project.result()), without_cache(self.templates.reference)
        missing = {name for name in wanted.keys() - found.keys() if name.startswith(OPTIONAL)}
        return difference(found, {name: data for name, data in wanted.items() if name not in missing})


def delete(folder, patterns, planned):
    """Delete one of the files in *folder* that *planned* selects; return whether there was one."""
    found = [path for pattern in patterns[planned.what] for path in sorted(folder.glob(pattern))]
    found = [path for path in found if not path.name.endswith(".lock")]
    if not found:
        return False
    path = found[int(planned.choice * len(found))]
    if path.is_dir():
        delete_tree(path)
    else:
        path.unlink(missing_ok=True)
    return True


def run(asked, folder, until):
    """Return a row for each trial."""
    indices = [asked.replay] if asked.replay is not None else range(asked.count)
    plans = [plan(asked.seed, index) for index in indices]
    deletions = Deletions(folder, commands=any(each.command for each in plans))
    return run_trials(deletions.trial, plans, asked.jobs, until)
