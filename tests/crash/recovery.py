"""Recovery by the same command, by the remedy that a message names, or by `learner doctor --fix`."""

import functools
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

LEARNER = (sys.executable, "-m", "pipeline")
REMEDY = re.compile(
    r"\brm (?:-rf? )?[`'\"]?(?P<removed>[\w./-]+)"
    r"|\b(?:[Rr]emove|[Dd]elete) (?:the (?:file|folder|directory|store) )?"
    r"[`'\"]?(?P<deleted>[\w./-]*[./][\w./-]+)"
    r"|\bgit (?:checkout|restore) (?:HEAD )?(?:-- )?(?P<restored>[\w./-]+)"
    r"|\blearner (?P<command>(?:runs|doctor)(?: [\w./-]+)+)"
)
RECOVERED, REFUSED, DOCTOR, BLOCKED = "recovered", "recovered by its remedy", "needed doctor", "blocked"


@dataclass(frozen=True)
class Recovery:
    """How a command succeeded in the end."""

    how: str
    text: str = ""
    """The output of the last command that failed; empty if none did."""

    @property
    def finding(self):
        """Return what is wrong; empty if the command succeeded."""
        return f"blocked, even after doctor --fix: {self.text[-1200:]}" if self.how == BLOCKED else ""

    @property
    def counted(self):
        """Return the counts for the table."""
        return {self.how: 1}


def recover(project, command):
    """Run *command* in *project*, and if it fails, again after `learner doctor --fix`."""
    if project.finish(*command) == 0:
        return Recovery(RECOVERED)
    text = project.output()
    run_doctor(project)
    return Recovery(DOCTOR, text) if project.finish(*command) == 0 else Recovery(BLOCKED, project.output())


def recover_by_remedy(project, command):
    """Apply the remedy of the last message in *project* and run *command*; if it fails, use doctor."""
    if apply_remedy(project, project.output()) and project.finish(*command) == 0:
        return Recovery(REFUSED)
    return recover(project, command)


def run_doctor(project):
    """Run `learner doctor --fix`, with ``--deep`` if there is such an option; return what it prints."""
    deep = ("--deep",) if has_deep_doctor(project.folder.parent) else ()
    project.finish(*LEARNER, "doctor", *deep, "--fix")
    return project.output()


@functools.cache
def has_deep_doctor(_):
    """Return whether `learner doctor` has the option ``--deep``."""
    done = subprocess.run([*LEARNER, "doctor", "--help"], capture_output=True, text=True, check=False)
    return "--deep" in done.stdout


def apply_remedy(project, text):
    """Apply the first remedy in the message *text*; return whether there was one."""
    for match in REMEDY.finditer(text):
        named = match.groupdict()
        if path := named["removed"] or named["deleted"]:
            if remove_within(project.folder, path.rstrip(".,:;")):
                return True
        elif named["restored"]:
            project.finish("git", "checkout", "HEAD", "--", named["restored"].rstrip(".,:;"))
            return True
        elif named["command"] and named["command"].startswith(("doctor", "runs prune", "runs verify")):
            project.finish(*LEARNER, *named["command"].split())
            return True
    return False


def remove_within(folder, name):
    """Remove the file or folder *name* if it exists in *folder*; return whether it did."""
    path = folder / name
    if not path.exists() or folder.resolve() not in path.resolve().parents:
        return False
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    return True
