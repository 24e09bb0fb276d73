"""An error at one system call of `learner run` or `dvc repro` on a result: it fails and resumes, or succeeds.

Of `dvc repro`, the calls of DVC's own process: the same code makes those of a stage under `learner run`.
Trials are in rounds: each has a call of each kind on each kind of file, so that a short series has them all.
"""

import os
import re
import sys
import time
from collections import defaultdict
from contextlib import suppress
from importlib import import_module
from itertools import chain, zip_longest
from pathlib import Path

from dvc.cli import main as dvc
from forked_programs import become, fork_stages_of_dvc
from in_process import call
from report import Row
from small_run import fork, run_in_child, wait_for_result
from tracer import check_permitted, trace, wait_for_tracer
from trial_projects import difference, templates
from workers import run_sample

from stages.runs.layout import RUNS_FOLDER
from stages.system.files import PART_SUFFIX

ERRORS = ("EIO", "EACCES", "ENFILE", "ENOSPC")
READ = ("/artifacts", "/data", "/.runs", "/dvc.lock", "/.dvc/cache")
"""Folders and files of the results; the code of a project is read as well."""
CACHE, RUN_CACHE = ".dvc/cache/", ".dvc/cache/runs/"
SMALLEST = (("num_epochs: 3", "num_epochs: 1"), ("checkpoint_every_steps: 3", "checkpoint_every_steps: 15"))
PARTS = {"learner run": (f"*{PART_SUFFIX}", ".*.tmp"), "dvc repro": (f"*{PART_SUFFIX}",)}
"""Patterns of the temporary files that an entry must not leave; DVC leaves its own."""
NUMBERED = re.compile(r"[0-9a-f]{2}|.*\d.*")
"""Names of single files of a kind, by numbers and hashes, and of folders by the beginnings of hashes."""


def run_learner(project):
    """Run `learner run` in *project*, and return its exit code and its output."""
    code, *streams = call(["run"], project.folder, project.environment)
    return code, "".join(streams)


def run_dvc(project):
    """Run `dvc repro` in *project*, its stages in forks, and return its exit code and its output."""
    os.environ.update(project.environment)
    os.chdir(project.folder)
    log = Path(f"{project.prefix}.log")
    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    if stage := fork_stages_of_dvc():
        _run_stage(*stage)
    code = dvc(["repro"])
    sys.stdout.flush()
    return code, log.read_text()


def _run_stage(*program):
    """Run a stage in this process and end it, as Python does."""
    try:
        become(*program)
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code or 0)


ENTRIES = {"learner run": run_learner, "dvc repro": run_dvc}


class CommandCalls:
    """All errors that can be injected into a command in a project without a finished stage."""

    def __init__(self, folder):
        self.folder = folder
        self.templates = templates(folder.parent, *SMALLEST)
        self._import_modules()
        self.calls = {entry: self._run(entry, self._begin(f"untouched-{entry[:3]}"))[0] for entry in ENTRIES}
        self.cases = [
            (entry, number, error)
            for entry, calls in self.calls.items()
            for number, call in enumerate(calls)
            if call.path.startswith(READ)
            for error in ERRORS
        ]

    def _import_modules(self):
        """Import what each trial would import again, which takes longer than its stages."""
        for entry, run in ENTRIES.items():
            project = self._begin(f"imports-{entry[:3]}")
            names = run_in_child(lambda run=run, project=project: run(project) and [*sys.modules])[1]
            for name in names:
                with suppress(ImportError):  # a module that another one has created
                    import_module(name)
            project.remove()

    def _begin(self, name):
        return self.templates.start("empty", self.folder / name)

    def _run(self, entry, project, target=None, error=None):
        """Return the calls of *entry* in *project*, its exit code and its output; *target* fails."""

        def action():
            wait_for_tracer()
            return ENTRIES[entry](project)

        pid, reading = fork(action)
        calls, status = trace(pid, project.folder, target, error)
        ended, answer, text = wait_for_result(pid, reading, status)
        return calls, *(answer if ended == 0 else (ended, text))

    @staticmethod
    def _run_untraced(entry, project):
        ended, answer, text = run_in_child(lambda: ENTRIES[entry](project))
        return answer if ended == 0 else (ended, text)

    def sample(self, count, draw):
        """Draw *count* cases in rounds: each has a call on each kind of file, with one of the errors.

        Each call comes once before any has a second error.
        """
        kinds = defaultdict(list)
        for index in range(0, len(self.cases), len(ERRORS)):
            entry, number, _ = self.cases[index]
            target = self.calls[entry][number]
            kinds[entry, target.name, _kind(target.path)].append(index)
        for calls in kinds.values():
            draw.shuffle(calls)
        rounds = [index for calls in zip_longest(*kinds.values()) for index in calls if index is not None]
        offsets = [draw.randrange(len(ERRORS)) for _ in rounds]
        return [
            index + (offset + turn) % len(ERRORS)
            for turn in range(len(ERRORS))
            for index, offset in zip(rounds, offsets, strict=True)
        ][:count]

    def trial(self, index):
        """Inject error *index*, and run the same command again."""
        entry, number, error = self.cases[index]
        target = self.calls[entry][number]
        project = self._begin(f"case-{index}")
        calls, code, text = self._run(entry, project, target, error)
        wrong = ["a traceback" if "Traceback" in text else ""]
        differs = code == 0 and bool(self._difference(project))
        is_of_dvc = differs and entry == "dvc repro"  # no code of this project runs in that process
        if code == 0:
            wrong.append("exit 0, but other outputs" if differs and not is_of_dvc else "")
        elif code != (255 if entry == "dvc repro" else 1) or not text.strip():
            wrong.append(f"it ended with {code}")
        left_behind(project.folder / RUNS_FOLDER, ["watchdog-*"])  # the command again starts faster than DVC
        again, more = self._run_untraced(entry, project)
        wrong += [f"the next run ended with {again}: {more[-600:]}" if again else ""]
        wrong += [self._difference(project, has_more_in_cache=is_of_dvc)]
        wrong += [", ".join(left_behind(project.folder, PARTS[entry]))]
        finding = "; ".join(filter(None, wrong))
        if finding:
            finding = f"trial {index}, {error} at call {number}: {target}: {finding}\n{text[-1500:]}"
        else:
            project.remove()
        counted = {
            "with exit 0": int(code == 0),
            "not reached": int(target not in calls),
            "wrong until it is repeated": int(is_of_dvc),
        }
        return Row(f"{entry}: {error}", finding, counted)

    def _difference(self, project, *, has_more_in_cache=False):
        """Return how the result differs from that of an untouched run.

        With *has_more_in_cache*, DVC may have cached other results as well, and noted them in its run-cache.
        """
        found, wanted = project.result(), self.templates.reference
        if has_more_in_cache:
            wanted = {name: wanted[name] for name in wanted if not name.startswith(RUN_CACHE)}
            found = {name: found[name] for name in found if name in wanted or not name.startswith(CACHE)}
        return difference(found, wanted)


def _kind(path):
    """Return *path* without the numbers and hashes that name single files."""
    parts = path.strip("/").split("/")
    return "/".join("*" if NUMBERED.fullmatch(part) else part for part in parts)


def left_behind(folder, patterns, seconds=60):
    """Return the files of *patterns* that are left in *folder* after *seconds*: a watchdog may be writing."""
    deadline = time.monotonic() + seconds
    while (parts := [*chain(*map(folder.rglob, patterns))]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [str(part.relative_to(folder)) for part in parts]


def run(asked, folder, until):
    """Return a row for each trial: all of them, or a sample of *asked.count*."""
    check_permitted()
    return run_sample(CommandCalls(folder), asked, until)
