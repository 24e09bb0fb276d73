"""Random sequences of commands in one project, and what must hold after each of them.

    python tests/oracle/random_commands.py --count 20 --seed 1

A command that brings the pipeline up to date leaves the files that a fresh checkout with the same params has,
whatever came before it: other params, kills, damaged outputs, experiments, commits and removed stores. A
command that reads changes no file. The sequence of a seed is a function of it, except for the moments of its
kills; `make long` tries some. A sequence takes half a minute.
"""

import os
import random
import shutil
import signal
import sys
import time

from ruamel.yaml import YAML
from seeds import find_changes, try_projects

LENGTH = 20
"""The commands of a sequence."""
OUTPUTS = ("artifacts", "data", "dvc.lock")
PARAMS = {
    "load_data.seed": (42, 7),
    "build_learner.seed": (42, 7),
    "fit.num_epochs": (1, 2, 3),
    "fit.batch_size": (32, 48),
    "save_model.epoch": ("last", "best"),
}
UPDATES = (
    ("pipeline", "run"),
    ("pipeline", "run"),
    ("dvc", "repro"),
    ("dvc", "repro"),
    ("dvc", "exp", "run"),
)
READING = (
    ("check",),
    ("status",),
    ("status", "--why", "fit"),
    ("compare",),
    ("summary",),
    ("runs", "list"),
    ("runs", "verify"),
    ("params",),
    ("doctor",),
)


class Sequence:
    """A random sequence of *length* commands in a copy of *template*."""

    def __init__(self, seed, template, folder, references, length):
        self.r = random.Random(seed)  # noqa: S311
        self.references = references
        self.length = length
        self.folder = folder
        self.project = template.copied_to(folder / "sequence")
        self.done = []
        """The commands and changes so far, as text."""
        self.commits = []

    def run(self):
        """Run the commands, and return what is wrong, if anything, with the commands before it."""
        actions = [
            (self.update, 6),
            (self.edit, 4),
            (self.interrupt, 4),
            (self.read, 3),
            (self.damage, 2),
            (self.update_part, 1),
            (self.try_experiment, 1),
            (self.apply_experiment, 1),
            (self.commit, 2),
            (self.check_out, 1),
            (self.clean, 1),
        ]
        methods, weights = zip(*actions, strict=True)
        for action in [*self.r.choices(methods, weights, k=self.length), self.update]:
            if problem := action():
                return [problem, *self.done]
        return []

    def start(self, *command):
        """Run *command*, and list it in `done`."""
        self.done.append(" ".join(command))
        return self.project.fork(*command)

    def draw_update(self):
        """Return a command that brings the pipeline up to date, perhaps with another value of a param."""
        command = self.r.choice(UPDATES)
        if "run" in command and self.r.random() < 0.3:
            name = self.r.choice([*PARAMS])
            command = (*command, "-S", f"{name}={self.r.choice(PARAMS[name])}")
        return command

    def update(self):
        """Bring the pipeline up to date, and compare the files with those of a fresh checkout."""
        done = self.start(*self.draw_update())
        return describe_failure(done) or self.compare()

    def compare(self):
        """Return how the files differ from those of a fresh checkout with the same params."""
        changed = find_changes(self.references.of(self.project), read_outputs(self.project))
        return f"other files than a fresh checkout: {changed}" if changed else ""

    def edit(self):
        """Set a param."""
        name = self.r.choice([*PARAMS])
        value = self.r.choice(PARAMS[name])
        self.done.append(f"{name} = {value}")
        yaml, path = YAML(), self.project.folder / "params.yaml"
        params = yaml.load(path)
        section, key = name.split(".")
        params[section][key] = value
        yaml.dump(params, path)

    def interrupt(self):
        """Send a signal to the process group of a command; repair the checkout after an experiment of DVC."""
        command = self.draw_update()
        number = self.r.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        seconds = self.r.uniform(0.1, 3.0)
        self.done.append(f"{' '.join(command)}, {number.name} after {seconds:.2f} s")
        program = self.project.start_fork(*command, log=self.folder / "log")
        time.sleep(seconds)
        if program.poll() is None:
            os.killpg(program.pid, number)
        program.wait()
        if "exp" not in command:
            return ""
        return describe_failure(self.start("pipeline", "doctor", "--fix"), {0, 1})

    def read(self):
        """Run a command that reads, and compare the files before and after."""
        before = self.snapshot()
        done = self.start("pipeline", *self.r.choice(READING))
        return describe_failure(done, {0, 1}) or self.changes(before)

    def snapshot(self):
        """Return the content of the outputs, and what Git has of the other files."""
        return self.project.files(*OUTPUTS) | {"git": self.project.ok("git", "status", "--porcelain")}

    def changes(self, before):
        """Return what has changed since the snapshot *before*."""
        changed = find_changes(before, self.snapshot())
        return f"changed: {changed}" if changed else ""

    def damage(self):
        """Remove, cut or change an output, or remove a folder."""
        outputs = sorted(self.project.files("artifacts", "data")) or ["artifacts/none"]
        what = self.r.choice(["remove", "cut", "append", "folder", "lock", "store"])
        path = self.project.folder / self.r.choice(outputs)
        path = {"folder": path.parent, "lock": self.project.folder / "dvc.lock"}.get(what, path)
        path = self.project.folder / ".runs" if what == "store" else path
        self.done.append(f"damage: {what} {path.relative_to(self.project.folder)}")
        if not path.exists():
            return
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # the file of a watchdog may go meanwhile
        elif what in {"remove", "lock"}:
            path.unlink()
        elif what == "cut":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        else:
            path.write_bytes(path.read_bytes() + b"\n")

    def update_part(self):
        """Bring some stages up to date."""
        stage = self.r.choice(["load-data", "build-learner", "fit"])
        return describe_failure(self.start(*self.r.choice([("dvc", "repro"), ("pipeline", "run")]), stage))

    def try_experiment(self):
        """Run an experiment outside of the workspace, which does not change."""
        before, name = self.snapshot(), self.r.choice([*PARAMS])
        change = f"{name}={self.r.choice(PARAMS[name])}"
        done = self.start("dvc", "exp", "run", "--temp", "-S", change)
        return describe_failure(done) or self.changes(before)

    def apply_experiment(self):
        """Apply an experiment of the present commit, if there is one."""
        names = self.project.dvc("exp", "list", "--name-only").out.split()
        if not names:
            return ""
        return describe_failure(self.start("dvc", "exp", "apply", self.r.choice(sorted(names))))

    def commit(self):
        """Commit everything."""
        self.done.append("git commit")
        self.project.run("git", "add", "-A")
        self.project.run("git", "commit", "-qm", "A commit")
        self.commits.append(self.project.ok("git", "rev-parse", "HEAD").strip())

    def check_out(self):
        """Check out an earlier commit, and perhaps its outputs."""
        if not self.commits:
            return
        self.done.append("git checkout -f of an earlier commit")
        self.project.ok("git", "checkout", "-qf", self.r.choice(self.commits))
        if self.r.random() < 0.5:
            self.start("dvc", "checkout")

    def clean(self):
        """Remove what is not needed."""
        removal = [("dvc", "gc", "-w", "-f"), ("pipeline", "runs", "prune"), ("pipeline", "doctor", "--fix")]
        return describe_failure(self.start(*self.r.choice(removal)), {0, 1})


def describe_failure(done, codes=(0,)):
    """Return the output of a command that has not exited with one of *codes*, or has printed a traceback."""
    is_expected = done.code in codes and "Traceback" not in done.text
    return "" if is_expected else f"exit code {done.code}: {done.text}"


class References:
    """The files of fresh checkouts by their params."""

    def __init__(self, template, folder):
        self.template = template
        self.folder = folder
        self.files = {}

    def of(self, project):
        """Return the outputs that a fresh checkout with the params of *project* has."""
        params = (project.folder / "params.yaml").read_bytes()
        key = repr(YAML(typ="safe").load(params))
        if key not in self.files:
            fresh = self.template.copied_to(self.folder / f"fresh-{len(self.files)}")
            (fresh.folder / "params.yaml").write_bytes(params)
            fresh.call("run").ok()
            self.files[key] = read_outputs(fresh)
            shutil.rmtree(fresh.folder, ignore_errors=True)
        return self.files[key]


def read_outputs(project):
    """Return the outputs by their paths, and the entries of dvc.lock, whose order is that of the commands."""
    lock = YAML(typ="safe").load(project.folder / "dvc.lock")
    return project.files("artifacts", "data") | {
        f"dvc.lock: {name}": lock["stages"][name] for name in lock["stages"]
    }


def prepare(template, folder):
    """Return a function that tries the sequence of a seed in copies of *template*."""
    references = References(template, folder)
    return lambda seed, place: Sequence(seed, template, place, references, LENGTH).run()


if __name__ == "__main__":
    sys.exit(try_projects(__doc__, "sequences", 20, prepare))
