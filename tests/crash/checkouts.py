"""Checkouts with uncommitted edits, which no command may change, even if it is killed."""

import functools
import subprocess
import time

from trial_projects import COMMANDS, difference, templates
from waiting import LIMIT_SECONDS

from pipeline.doctor.checkout import BACKUP
from stages.system.file_lock import is_locked

EPOCHS = "fit.num_epochs=3"
"""The override with which a run from an edited checkout equals the reference of the templates."""
EDITED = ("params.yaml", "README.md", "Makefile", "notes.txt")
CACHE = ".dvc/cache/"


@functools.cache
def checkouts(folder):
    """Return the edited checkout in *folder*, created at the first call."""
    return Checkouts(folder / "checkouts")


class Checkouts:
    """Copies of a project whose user edited params.yaml (two epochs), tracked files and an untracked one."""

    def __init__(self, folder):
        self.folder = folder
        self.templates = templates(folder.parent)
        self.original = self._make(folder / "edited")
        self.user_files = self.user_files_of(self.original)
        self.outputs = without_cache(self.original.result())
        self.repro = self._result_of_repro()

    def _make(self, folder):
        project = self.templates.start("training", folder)
        project.project.edit("params.yaml", "num_epochs: 3", "num_epochs: 2  # until the deadline")
        for name in ("README.md", "Makefile"):
            path = project.folder / name
            path.write_text(path.read_text() + "\n# an edit of the user\n")
        (project.folder / "notes.txt").write_text("a note of the user\n")
        project.ok("git", "add", "Makefile")
        return project

    def _result_of_repro(self):
        """Return the result of an untouched `dvc repro` with the user's own params."""
        project = self.copy(self.folder / "repro")
        project.ok(*COMMANDS["dvc repro"])
        result = project.result()
        project.remove()
        return result

    def copy(self, folder):
        """Return a copy of the edited checkout in *folder*."""
        return self.original.copied_to(folder)

    def user_files_of(self, project):
        """Return the user's files and git's state, except for the dvc.lock of a run in the workspace."""
        files = {name: (project.folder / name).read_bytes() for name in EDITED}
        git = {
            "git status": ("status", "--porcelain", "--", ".", ":!dvc.lock"),
            "git diff --cached": ("diff", "--cached", "--", ".", ":!dvc.lock"),
            "git HEAD": ("log", "-1", "--format=%H"),
            "git branch": ("branch", "--show-current"),
        }
        stashes = _git(project, "stash", "list").splitlines()
        return (
            files
            | {name: _git(project, *arguments) for name, arguments in git.items()}
            | {"git stash": b"\n".join(each for each in stashes if BACKUP.encode() not in each)}
        )

    def wrong_user_files(self, project):
        """Return how the user's files differ from those before the command; empty if they do not."""
        return difference(self.user_files_of(project), self.user_files)

    def wrong_workspace(self, project):
        """Return how the outputs in the workspace differ from those before the command."""
        return difference(without_cache(project.result()), self.outputs)

    def wrong_experiments(self, project, *wanted):
        """Return how the experiments differ from *wanted*, the dvc.lock of each."""
        found, cached = set(project.experiments()), self.templates.reference
        if found != set(wanted):
            return (
                f"{len(found)} different experiments, {len(found & set(wanted))} of {len(set(wanted))} wanted"
            )
        return wrong_cache(project.result(), cached) if cached["dvc.lock"] in found else ""

    def wrong_repro(self, project):
        """Run `dvc repro` and return how the result differs from an untouched one; empty if it does not."""
        code = project.finish(*COMMANDS["dvc repro"])
        if code:
            return f"the next dvc repro ended with {code}: {project.output()[-800:]}"
        result = project.result()
        wrong = difference(without_cache(result), without_cache(self.repro)) or wrong_cache(
            result, self.repro
        )
        return f"after the next dvc repro: {wrong}" if wrong else ""


def without_cache(result):
    """Return the part of *result* that is not in DVC's cache."""
    return {name: data for name, data in result.items() if not name.startswith(CACHE)}


def wrong_cache(found, wanted):
    """Return the files of the cache that are missing in *found* or differ; further ones are allowed."""
    wanted = {name: data for name, data in wanted.items() if name.startswith(CACHE)}
    return difference({name: found[name] for name in wanted.keys() & found.keys()}, wanted)


def leftovers(project):
    """Return the processes and locks that the commands in *project* left; empty if there are none."""
    wrong = []
    if left := project.orphans():
        wrong.append(f"still running: {left}")
    if locks := sorted(path.name for path in (project.folder / ".git").rglob("*.lock")):
        wrong.append(f"locks in .git: {locks}")
    temporary = [*project.folder.glob(".runs/*.lock"), project.folder / ".runs/lock"]
    if held := [path.name for path in temporary if path.exists() and is_locked(path)]:
        wrong.append(f"locks that are held: {held}")
    return "; ".join(wrong)


def wait_until(is_so, process=None):
    """Wait until *is_so()* and return True; False after `LIMIT_SECONDS`, or if *process* ends before."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not is_so():
        if time.monotonic() > deadline or (process and process.poll() is not None):
            return False
        time.sleep(0.002)
    return True


def _git(project, *arguments):
    done = subprocess.run(
        ["git", *arguments], cwd=project.folder, env=project.environment, capture_output=True, check=True
    )
    return done.stdout
