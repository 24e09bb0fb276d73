"""A sweep in a separate process, and the files that it writes."""

import re
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from waiting import wait_until


class Sweep:
    """The command ``learner sweep`` in *project*; a test can start it several times."""

    def __init__(self, project, *arguments, **environment):
        self.project = project
        self.command = [sys.executable, "-m", "pipeline", "sweep", *arguments]
        self.environment = project.environment | environment

    @contextmanager
    def start(self):
        """Start the sweep with its output in a file, and kill it at the end of the block."""
        output = self.project.folder.parent / "sweep.out"
        process = self.project.start(*self.command, log=output, **self.environment)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def run(self):
        """Run the sweep to its end and return the outcome."""
        return self.project.run(*self.command, **self.environment)

    def wait_for(self, process, *, experiments, training):
        """Wait until at least *experiments* are finished and *training* points are in progress."""

        def is_reached():
            return len(self.experiments()) >= experiments and len(self.in_progress()) >= training

        wait_until(is_reached, (self.project.folder.parent / "sweep.out").read_text, process)

    def experiments(self):
        """Return the names of the experiments, sorted."""
        listed = self.project.ok("git", "for-each-ref", "--format=%(refname)", "refs/exps")
        return sorted(ref.rpartition("/")[2] for ref in listed.split())

    def in_progress(self):
        """Return the points that have finished an epoch and have no experiment yet."""
        finished = self.experiments()
        return [name for name in self.logs() if name not in finished and self.epochs(name)]

    def logs(self):
        """Return a map from the name of each point to its output in all attempts."""
        found = sorted((self.project.folder / ".runs/sweep").glob("*.log"))
        return {path.stem: path.read_text() for path in found}

    def processes(self):
        """Return the ids of the processes whose current folder is a copy of the project."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if str((entry / "cwd").readlink()).startswith(f"{self.project.folder}/.runs"):
                    found.append(int(entry.name))
        return found

    def epochs(self, name):
        """Return the finished epochs of the point *name*, in the order in which it logged them."""
        return [int(number) for number in re.findall(r"\bepoch +(\d+)/\d+ \|", self.logs()[name])]

    def attempts(self, name):
        """Return how often the point *name* was started."""
        return self.logs()[name].count("$ dvc exp run ")


@pytest.fixture(scope="session")
def sweep_in():
    """Return a function that builds a sweep from a project and the arguments of ``learner sweep``."""
    return Sweep
