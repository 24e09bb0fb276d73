"""Projects in temporary folders, in which tests run commands as a user does."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from forked_programs import ForkedProgram, has_other_code

IN_PROCESS = (
    "check",
    "compare",
    "data",
    "doctor",
    "params",
    "plot",
    "records",
    "runs",
    "status",
    "summary",
    "versions",
)
"""The commands of ``learner`` that run no stage and do not import modules of the user."""


@dataclass(frozen=True)
class Finished:
    """The exit code and the output of a finished command."""

    code: int
    out: str
    err: str

    @property
    def text(self):
        return self.out + self.err

    def ok(self):
        """Check that the command has exited with 0, and return its output."""
        assert self.code == 0, self.text
        return self.text

    @property
    def imported(self):
        """The names of the modules that a Python with ``-X importtime`` has imported."""
        lines = (line for line in self.err.splitlines() if line.startswith("import time:"))
        return {line.rsplit("|", 1)[1].strip() for line in lines}


class Project:
    """A project in a separate folder, in which tests run commands as a user does.

    `call` is the way to run ``learner`` unless a test is about processes: it imports nothing again.
    `learner`, `run`, `ok` and `start` start real processes.
    """

    def __init__(self, folder, home):
        self.folder = folder
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DVC_"))
        } | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "COLUMNS": "200",
            "GIT_AUTHOR_NAME": "t",
            "GIT_AUTHOR_EMAIL": "t@localhost",
            "GIT_COMMITTER_NAME": "t",
            "GIT_COMMITTER_EMAIL": "t@localhost",
        }

    def call(self, *arguments, **environment):
        """Run ``learner`` without a new interpreter, and return what `learner` returns.

        A command of `IN_PROCESS` and a dry run are run in this process. Others, and those of a project
        whose code a test has edited, run in a fork of a process that has imported torch and DVC.
        """
        is_reading = arguments[:1] and (arguments[0] in IN_PROCESS or "--dry-run" in arguments)
        if is_reading and not has_other_code(self.folder):
            import in_process  # imports most of the project, which few tests of `stages` need

            return Finished(*in_process.call(arguments, self.folder, self.environment | environment))
        return self.fork("pipeline", *arguments, **environment)

    def dvc(self, *arguments, **environment):
        """Run ``dvc`` as `fork` does; it runs the stages of the project in forks too, if it runs any."""
        return self.fork("dvc", *arguments, **environment)

    def fork(self, module, *arguments, **environment):
        """Run ``python -m module`` in a fork of a process that has imported torch, DVC and this project.

        Python and torch have read some environment variables before the fork; a test that sets one of them
        needs a process.
        """
        with tempfile.TemporaryDirectory() as folder:
            streams = [Path(folder, name) for name in ("out", "err")]
            code = self._start_fork(module, arguments, streams, environment).wait()
            return Finished(code, *(stream.read_text() for stream in streams))

    def start_fork(self, module, *arguments, log, **environment):
        """Start what `fork` runs, in a process group of its own, with its output in the file *log*."""
        return self._start_fork(module, arguments, (log, log), environment, new_session=True)

    def _start_fork(self, module, arguments, streams, environment, *, new_session=False):
        for stream in streams:
            Path(stream).write_bytes(b"")
        return ForkedProgram(
            module,
            arguments,
            folder=self.folder,
            environment=self.environment | environment,
            streams=streams,
            new_session=new_session,
        )

    def run(self, *command, **environment):
        """Run *command* with additional *environment* variables; return its exit code and output."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def start(self, *command, log, **environment):
        """Start *command* in a process group of its own, with its output in the file *log*."""
        with Path(log).open("wb") as output:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ok(self, *command, **environment):
        """Run *command*, check that it exits with 0, and return its output."""
        return self.run(*command, **environment).ok()

    def learner(self, *arguments, **environment):
        """Run ``learner`` as a process, with the code in the folder of the project."""
        return self.run(sys.executable, "-m", "pipeline", *arguments, **environment)

    def edit(self, name, old, new):
        """Replace *old* by *new* in the file *name*, which must contain *old*."""
        path = self.folder / name
        text = path.read_text()
        assert old in text, f"{old!r} is not in {name}"
        path.write_text(text.replace(old, new))

    def use_model(self, kind, *arguments):
        """Replace the model in params.yaml and its arguments by *kind* and lines of *arguments*."""
        lines = "".join(f"    {line}\n" for line in (f'kind: "{kind}"', *arguments))
        path = self.folder / "params.yaml"
        text, count = re.subn(r"(?<=\n  model:\n)(    .*\n)+", lines, path.read_text())
        assert count == 1, "params.yaml has no model in a block"
        path.write_text(text)

    def add_experiment(self, name):
        """Add an experiment *name* with the tracked files, as `dvc exp save` does, and return its commit.

        It is a second younger than the last one: two of one second would be listed by name.
        """
        changed = self.run("git", "stash", "create").out.strip()  # exits with 1 if nothing has changed
        head, seconds = self.ok("git", "log", "-1", "--format=%H %ct").split()
        earlier = self.ok("git", "for-each-ref", "refs/exps").splitlines()
        date = f"@{int(seconds) + 1 + len(earlier)} +0000"
        tree = ("git", "commit-tree", f"{changed or 'HEAD'}^{{tree}}", "-p", "HEAD", "-m", name)
        commit = self.ok(*tree, GIT_COMMITTER_DATE=date).strip()
        self.ok("git", "update-ref", f"refs/exps/{head[:2]}/{head[2:]}/{name}", commit)
        return commit

    def add_deps(self):
        """Add the missing deps to dvc.yaml."""
        self.call("check", "--no-import", "--fix")

    def files(self, *names):
        """Return the content of each file below *names* by its path, except for those with times."""
        found = {}
        for name in names:
            base = self.folder / name
            for path in [base] if base.is_file() else sorted(base.rglob("*")):
                untracked = path.name == "experiment.log" or "telemetry" in path.parts
                if path.is_file() and not untracked:
                    found[str(path.relative_to(self.folder))] = path.read_bytes()
        return found

    def copied_to(self, folder):
        """Copy the project with its outputs and cache to *folder*, and return the copy."""
        watchdogs = shutil.ignore_patterns("watchdog-*")  # that of the last command may end while this copies
        shutil.copytree(self.folder, folder, symlinks=True, ignore=watchdogs, dirs_exist_ok=True)
        return Project(folder, self.environment["PREFECT_HOME"])
