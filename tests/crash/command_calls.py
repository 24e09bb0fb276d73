"""An error at one system call of `learner run` on a result: it fails and resumes, or succeeds."""

import time
from collections import defaultdict

from in_process import call
from report import Row
from small_run import fork, wait_for_result
from tracer import check_permitted, trace, wait_for_tracer
from trial_projects import difference, templates
from workers import run_sample

from stages.system.files import PART_SUFFIX

ERRORS = ("EIO", "EACCES", "ENFILE", "ENOSPC")
READ = ("/artifacts", "/data", "/.runs", "/dvc.lock", "/.dvc/cache")
"""Folders and files of the results; the code of a project is read as well."""


class CommandCalls:
    """All errors that can be injected into `learner run` of a project without a finished stage."""

    def __init__(self, folder):
        self.folder = folder
        self.templates = templates(folder.parent, ("num_epochs: 3", "num_epochs: 1"))
        self.calls = self._run(self._begin("untouched"))[0]
        numbers = [number for number, call in enumerate(self.calls) if call.path.startswith(READ)]
        self.cases = [(number, error) for number in numbers for error in ERRORS]

    def _begin(self, name):
        return self.templates.start("empty", self.folder / name)

    def _run(self, project, target=None, error=None):
        """Return the calls of `learner run` in *project*, its exit code and its output; *target* fails."""

        def action():
            wait_for_tracer()
            return call(["run"], project.folder, project.environment)

        pid, reading = fork(action)
        calls, status = trace(pid, project.folder, target, error)
        ended, answer, text = wait_for_result(pid, reading, status)
        return calls, *((answer[0], "".join(answer[1:])) if ended == 0 else (ended, text))

    def sample(self, count, draw):
        """Draw *count* cases over the kinds of calls and files."""
        kinds = defaultdict(list)
        for index, (number, error) in enumerate(self.cases):
            kinds[self.calls[number].name, _kind(self.calls[number].path), error].append(index)
        chosen = [draw.choice(cases) for cases in kinds.values()]
        return draw.sample(chosen, min(count, len(chosen)))

    def trial(self, index):
        """Inject error *index*, and run the same command again."""
        number, error = self.cases[index]
        target = self.calls[number]
        project = self._begin(f"case-{index}")
        calls, code, text = self._run(project, target, error)
        wrong = ["a traceback" if "Traceback" in text else ""]
        if code == 0:
            wrong.append("exit 0, but other outputs" if self._difference(project) else "")
        elif code != 1 or not text.strip():
            wrong.append(f"it ended with {code}")
        again, more = self._run(project)[1:]
        wrong += [f"the next run ended with {again}: {more[-600:]}" if again else ""]
        wrong += [self._difference(project), ", ".join(left_behind(project.folder))]
        finding = "; ".join(filter(None, wrong))
        if finding:
            finding = f"trial {index}, {error} at call {number}: {target}: {finding}\n{text[-1500:]}"
        else:
            project.remove()
        counted = {"with exit 0": int(code == 0), "not reached": int(target not in calls)}
        return Row(f"learner run: {error}", finding, counted)

    def _difference(self, project):
        return difference(project.result(), self.templates.reference)


def _kind(path):
    """Return *path* without the numbers and hashes that name single files."""
    parts = path.strip("/").split("/")
    return "/".join("*" if any(letter.isdigit() for letter in part) else part for part in parts)


def left_behind(folder, seconds=60):
    """Return the temporary files that are still below *folder* after *seconds*: a watchdog may be writing."""
    deadline = time.monotonic() + seconds
    while (parts := list(folder.rglob(f"*{PART_SUFFIX}"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [str(part.relative_to(folder)) for part in parts]


def run(asked, folder, until):
    """Return a row for each trial: all of them, or a sample of *asked.count*."""
    check_permitted()
    return run_sample(CommandCalls(folder), asked, until)
