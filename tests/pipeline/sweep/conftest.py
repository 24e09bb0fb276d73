"""A sweep in a process of its own, and what it left behind."""

import re
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from waiting import wait_until


class Sweep:
    """``learner sweep`` in *project*, as often as it is started."""

    def __init__(self, project, *arguments, **environment):
        self.project = project
        self.command = [sys.executable, "-m", "pipeline", "sweep", *arguments]
        self.environment = project.environment | environment

    @contextmanager
    def started(self):
        """It at work; what it prints goes to a file."""
        with (self.project.folder.parent / "sweep.out").open("w") as out:
            process = subprocess.Popen(
                self.command, cwd=self.project.folder, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()

    def to_its_end(self):
        """How it ended."""
        return self.project.run(*self.command, **self.environment)

    def until(self, process, *, experiments, training):
        """Wait for so many experiments, and runs at work."""

        def reached():
            return len(self.experiments()) >= experiments and len(self.at_work()) >= training

        wait_until(reached, (self.project.folder.parent / "sweep.out").read_text, process)

    def experiments(self):
        """The names of the experiments, sorted."""
        listed = self.project.ok("git", "for-each-ref", "--format=%(refname)", "refs/exps")
        return sorted(ref.rpartition("/")[2] for ref in listed.split())

    def at_work(self):
        """The points that have ended an epoch, and have no experiment yet."""
        done = self.experiments()
        return [name for name in self.logs() if name not in done and self.epochs(name)]

    def logs(self):
        """What each point's processes printed, in all of their attempts."""
        found = sorted((self.project.folder / ".runs/sweep").glob("*.log"))
        return {path.stem: path.read_text() for path in found}

    def processes(self):
        """The processes that are at work in a copy of the project."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if str((entry / "cwd").readlink()).startswith(f"{self.project.folder}/.runs"):
                    found.append(int(entry.name))
        return found

    def epochs(self, name):
        """The epochs that the point *name* ended, in the order in which its log tells them."""
        return [int(number) for number in re.findall(r"\bepoch +(\d+)/\d+ \|", self.logs()[name])]

    def attempts(self, name):
        """How often it was started."""
        return self.logs()[name].count("$ dvc exp run ")


@pytest.fixture(scope="session")
def sweep_in():
    """A sweep in a project, with what is typed after ``learner sweep``."""
    return Sweep
