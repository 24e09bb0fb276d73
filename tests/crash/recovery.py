"""Recovery: the same command again, the remedy that a refusal names, and `learner doctor --fix`."""

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
    """How a command came to its end again."""

    how: str
    said: str = ""
    """The output of the command that was refused last, empty if none was."""

    @property
    def finding(self):
        """What is wrong, empty if the command came to its end."""
        return f"blocked, even after doctor --fix: {self.said[-1200:]}" if self.how == BLOCKED else ""

    @property
    def counted(self):
        """What the table adds up."""
        return {self.how: 1}


def recover(project, command):
    """Run *command* in *project* to its end, with `learner doctor --fix` only if it refuses."""
    if project.finish(*command) == 0:
        return Recovery(RECOVERED)
    said = project.output()
    run_doctor(project)
    return Recovery(DOCTOR, said) if project.finish(*command) == 0 else Recovery(BLOCKED, project.output())


def recover_by_remedy(project, command):
    """Repair what the last refusal in *project* names, and run *command*; or use doctor."""
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
    """Return whether `learner doctor --deep` is offered."""
    done = subprocess.run([*LEARNER, "doctor", "--help"], capture_output=True, text=True, check=False)
    return "--deep" in done.stdout


def apply_remedy(project, said):
    """Apply the first remedy in the message *said*; return whether there was one."""
    for match in REMEDY.finditer(said):
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
    """Remove the file or folder *name* if it is there, and below *folder*; return whether it was."""
    path = folder / name
    if not path.exists() or folder.resolve() not in path.resolve().parents:
        return False
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    return True
