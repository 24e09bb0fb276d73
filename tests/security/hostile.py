"""The hostile repository: a stranger's project, a DVC remote, and canary files beside the clone of a user.

A test adds hostile files to the stranger's repository, the user clones it, and commands of ``learner`` run in
the clone. Whatever the repository contains, no file outside of the clone changes, and none of its code runs.
"""

import base64
import hashlib
import io
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import command_line  # noqa: F401  the commands of Typer are built once

from pipeline.__main__ import main
from pipeline.project import versions
from pipeline.scaffold.new_project import project_files
from stages.records import BinFileRecorder, NamedMpkGzFileRecorder
from stages.runs import Checkpoint, FileCheckpointer

LIMIT_SECONDS = int(os.environ.get("HOSTILE_LIMIT_SECONDS", "120"))
"""Time after which a command that reads a device is interrupted, instead of blocking the tests."""
HUNG = f"the command did not end within {LIMIT_SECONDS} seconds"
MEMORY_BYTES = 2 << 30
"""Memory that a command in this process may take in addition."""
KEY = "3f2a" * 4
"""The key of the run store that the repository delivers."""
IDENTITY = {
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@localhost",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@localhost",
}
STAGES = """stages:
  fit:
    cmd: learner stage fit
    params:
      - fit
      - versions.yaml: [fit]
    outs:
      - ${paths.checkpoint}
      - ${paths.train}
      - ${paths.valid}
      - ${paths.metrics}
      - ${paths.plots}
"""
CONTROL = "x\x1b]0;pwned\x07\x1b[2J\r\x9b31m"
"""Sets the title of a terminal, clears it, and returns to the start of the line."""
LOSS = "epoch\ttrain\tvalid\n1\t0.9\t0.8\n2\t0.7\t0.6\n"
WRITTEN_BY_GIT_AND_DVC = (".git", ".dvc/tmp", ".dvc/cache")


def md5_of(content):
    """Return the name of an object of DVC with *content*."""
    return hashlib.md5(content).hexdigest()  # noqa: S324  of DVC


@dataclass(frozen=True)
class Done:
    """The exit code and the output of a command; the code is None if an exception left it."""

    code: int | None
    out: str
    err: str
    searched: bool = False
    """True if the command has added the clone to the folders that Python searches for modules."""

    @property
    def text(self):
        return self.out + self.err


class World:
    """The repository of a stranger, its remote, the canaries and the clone, in one folder."""

    def __init__(self, folder):
        self.folder = folder
        self.origin, self.remote, self.clone = folder / "origin", folder / "remote", folder / "clone"
        self.canaries, self.marker = folder / "canaries", folder / "marker"
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DVC_"))
        } | {
            **IDENTITY,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_HOME": str(folder / "prefect"),
            "XDG_CACHE_HOME": str(folder / "prefect"),
            "COLUMNS": "200",
        }

    def git(self, *arguments, folder=None, **options):
        """Run git in the stranger's repository, or in *folder*, and return its output."""
        command = ["git", "-C", str(folder or self.origin), *arguments]
        options |= {"capture_output": True, "env": self.environment}
        return subprocess.run(command, check=True, **options).stdout.decode().strip()

    def canary(self, name="canary"):
        """Return the path of a new file of the user, outside of the clone."""
        path = self.canaries / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("the user's own text\n" * 3)
        return path

    def write(self, name, content):
        """Write a file of the stranger's repository."""
        path = self.origin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def link(self, name, target):
        """Make a link to *target* in the stranger's repository, in place of what has that name."""
        path = self.origin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def program(self, name):
        """Return the source of a module that leaves a mark with *name* when it is imported."""
        return f"open({str(self.marker)!r}, 'a').write({name!r} + chr(10))\n"

    def put(self, content, name=None):
        """Add *content* to the DVC remote as the object *name*, by default its hash, and return the name."""
        name = name or md5_of(content)
        path = Path(f"{self.remote}/files/md5/{name[:2]}/{name[2:]}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return name

    def put_list(self, files):
        """Add *files*, path to content or name of an object, to the DVC remote as a directory."""
        entries = [
            {"md5": self.put(each) if isinstance(each, bytes) else each, "relpath": path}
            for path, each in sorted(files.items())
        ]
        content = json.dumps(entries).encode()
        return self.put(content, f"{md5_of(content)}.dir")

    def write_lock(self, **outputs):
        """Write a dvc.lock in which the stage fit has *outputs*, path to the name of its object."""
        params = "    params:\n      params.yaml:\n        fit:\n          num_epochs: 2\n"
        outs = [
            f"    - {json.dumps({'path': path, 'hash': 'md5', 'md5': md5})}\n"
            for path, md5 in outputs.items()
        ]
        head = "schema: '2.0'\nstages:\n  fit:\n    cmd: learner stage fit\n"
        self.write("dvc.lock", f"{head}{params}    outs:\n{''.join(outs)}")

    def commit(self, message="The project"):
        """Commit all files of the stranger's repository, also ignored ones."""
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)

    def commit_experiment(self, name):
        """Commit all files as the experiment *name* of HEAD, and return to HEAD."""
        head = self.git("rev-parse", "HEAD")
        self.commit(f"experiment {name}")
        self.git("update-ref", f"refs/exps/{head[:2]}/{head[2:]}/{name}", "HEAD")
        self.git("reset", "--quiet", "--hard", head)

    def deliver(self, *changes, untracked=()):
        """Make *changes* in the stranger's repository, and clone it as the user does.

        The changes *untracked* are then made in the clone, as if other users or programs had made them.
        """
        for change in changes:
            change(self)
        self.commit()
        (self.folder / "temporary/files").mkdir(parents=True)
        self.git("clone", "--quiet", str(self.origin), str(self.clone))
        self.origin = self.clone
        for change in untracked:
            change(self)
        return self

    def fill_cache(self):
        """Copy the objects of the DVC remote to the cache of the clone."""
        shutil.copytree(self.remote / "files", self.clone / ".dvc/cache/files", dirs_exist_ok=True)

    def learner(self, *words):
        """Run ``learner`` in the clone, in this process."""
        with _in_clone(self), redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            code = _call(words)
            searched = not {"", str(self.clone)}.isdisjoint(sys.path)
        hung = HUNG in err.getvalue()  # the command may report the exception as one of the user's code
        return Done(None if hung else code, out.getvalue(), err.getvalue(), searched)

    def run(self, *command, **environment):
        """Run *command* in the clone, in a process of its own."""
        options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "cwd": self.clone}
        done = subprocess.run(command, check=False, env=self.environment | environment, **options)
        return Done(done.returncode, done.stdout, done.stderr)

    def snapshot(self, *written):
        """Return what identifies the content of each file, except for those of git, DVC, and *written*."""
        skipped = {self.clone / each for each in (*written, *WRITTEN_BY_GIT_AND_DVC)}
        return {str(path): about for path, about in _walk(self.folder, {*skipped, self.folder / "prefect"})}


def _walk(folder, skipped):
    with os.scandir(folder) as entries:
        for entry in entries:
            path, about = Path(entry.path), entry.stat(follow_symlinks=False)
            if path in skipped:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield path, about.st_mode
                yield from _walk(path, skipped)
            else:
                yield path, (about.st_mode, about.st_ino, about.st_size, about.st_mtime_ns)


@contextmanager
def _in_clone(world):
    """Make the clone the current folder in the block, and bound the memory and the time of the block."""
    before, folder, path = dict(os.environ), Path.cwd(), list(sys.path)
    tempfile.tempdir = str(world.folder / "temporary/files")
    pages = int(Path("/proc/self/statm").read_text().split()[5])  # of data
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + MEMORY_BYTES, limits[1]))
    handler = signal.signal(signal.SIGALRM, _interrupt)
    signal.alarm(LIMIT_SECONDS)
    os.environ.clear()
    os.environ.update(world.environment)
    os.chdir(world.clone)
    try:
        yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)
        sys.path[:] = path
        tempfile.tempdir = None
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_DATA, limits)


class Hung(BaseException):
    """A command that did not end in time. No handler of errors catches it."""


def _interrupt(number, frame):
    raise Hung(HUNG)


def _call(words):
    before, sys.argv = sys.argv, ["learner", *words]
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    except BaseException:  # noqa: BLE001  what leaves the command is printed with its traceback
        traceback.print_exc()
        return None
    finally:
        sys.argv = before
    return 0


def make_project(world):
    """Write a project of ``learner init`` with two epochs of results, all of them in the DVC remote."""
    world.origin.mkdir()
    world.git("init", "--quiet")
    package = type("Package", (), {"requirement": "learner-pipeline", "local": None})
    for name, text in project_files(package, template="digits").items():
        world.write(name, world.program(name) + text if name.endswith(".py") else text)
    world.write("versions.yaml", versions.text())
    world.write("dvc.yaml", re.sub(r"(?s)stages:\n.*", STAGES, (world.origin / "dvc.yaml").read_text()))
    world.write(
        ".dvc/config", f"[core]\n    remote = store\n['remote \"store\"']\n    url = {world.remote}\n"
    )
    world.write(".dvc/.gitignore", "/config.local\n/tmp\n/cache\n")
    world.write_lock(**put_results(world))
    world.canary()
    world.commit()


def put_results(world, more=None):
    """Add the outputs of fit to the DVC remote, and return path to name; *more* files are in the plots."""
    folder = world.folder / "records"
    checkpointer = FileCheckpointer(folder, NamedMpkGzFileRecorder())
    if not folder.exists():
        checkpointer.save(1, Checkpoint({"weight": 1.5}, {}, None, {"epoch": 1}))
    logs = {"epoch-1/Loss.log": b"0.5,1\n", "epoch-2/Loss.log": b"0.4,1\n"}
    return {
        "artifacts/checkpoint": world.put_list({each.name: each.read_bytes() for each in folder.iterdir()}),
        "artifacts/train": world.put_list(logs),
        "artifacts/valid": world.put_list(logs),
        "artifacts/metrics.json": world.put(b'{"epoch": 2, "valid": {"Loss": 0.6}}\n'),
        "artifacts/plots": world.put_list({"Loss.tsv": LOSS.encode(), **(more or {})}),
    }


# what the repository delivers: each function changes the stranger's repository before it is cloned


def deliver_temporary_links(world):
    """Links with the names of temporary files of earlier versions, wherever a command writes."""
    names = ("params.yaml", "dvc.lock", "compare.html", "plot.svg", "versions.yaml", "out.mpk")
    for name in (
        *names,
        *(f".runs/{each}" for each in ("dvc.lock", "params-journal.json", "params-before.yaml")),
    ):
        world.link(f"{Path(name).parent}/.{Path(name).name}.part", world.canary(f"part-{Path(name).name}"))


def deliver_journal(world):
    """A journal with which an earlier version wrote its text through a link."""
    world.link(".params.yaml.part", world.canary("through-journal"))
    params = (world.origin / "params.yaml").read_bytes()
    entry = {
        "original": base64.b64encode(b"evil: text\n").decode(),
        "edited": hashlib.sha256(params).hexdigest(),
    }
    world.write(".runs/params-journal.json", json.dumps(entry))


def deliver_names(world):
    """Names that control a terminal, in every kind of file that commands print."""
    lock = (world.origin / "dvc.lock").read_text()
    world.write(
        "dvc.lock", lock.replace("          num_epochs: 2\n", f"          {json.dumps(CONTROL)}: 2\n")
    )
    world.write(f"artifacts/train/epoch-1/{CONTROL}.log", "0.5,1\n")
    world.write(f"artifacts/{CONTROL}.safetensors", "{}")
    world.write(f"{CONTROL}.dvc", "outs: []\n")


def deliver_modules(world):
    """Modules with the names of those of Python and of dependencies that most commands import."""
    for name in ("csv", "json", "typing", "ctypes", "dvc", "yaml", "torch", "rich"):
        world.write(f"{name}.py", world.program(name))


def deliver_lock_links(world):
    """Links with the names of our locks."""
    for name in ("lock", "dvc.lock.lock", f"{KEY}.lock", "watchdog-1"):
        world.link(f".runs/{name}", world.canary(f"lock-{name}"))
    world.write(f".runs/{KEY}/key.json", "{}")


def deliver_links_for_dvc(world):
    """Links with the names of the files that DVC locks and writes in place."""
    for name in ("lock", "rwlock", "rwlock.lock"):
        world.link(f".dvc/tmp/{name}", world.canary(f"dvc-{name}"))


def deliver_local_settings(world):
    """Settings of DVC that only the user may have: a remote with a file that names a program."""
    remote = f"['remote \"store\"']\n    url = s3://bucket\n    configpath = {world.canaries}/canary\n"
    world.write(".dvc/config.local", remote)


def deliver_site_cache(world):
    """A setting with which DVC would create and unpickle its state in a folder of the repository's choice."""
    config = (world.origin / ".dvc/config").read_text()
    world.write(".dvc/config", config.replace("[core]", f"[core]\n    site_cache_dir = {world.canaries}"))


def deliver_store(world):
    """A run store with names of files outside, and values of other types."""
    beat = {"pid": 1, "host": "h", "boot": "b", "started": 1, "epoch": 1, "epochs": 2, "split": "train"}
    beat |= {"step": 1, "steps": 2, "time": "2026-01-01T00:00:00"}
    outside = {"../../../canaries/canary": {"size": 1, "sha256": "0" * 64}}
    world.write(f".runs/{KEY}/key.json", json.dumps({"version": "1"}))
    world.write(f".runs/{KEY}/heartbeat.json", json.dumps(beat))
    world.write(f".runs/{KEY}/finished.json", json.dumps({"num_epochs": 2, "files": outside}))
    world.write(f".runs/{KEY}/logs.jsonl", json.dumps({"epoch": 1, "files": outside}) + "\n")
    world.link(f".runs/{KEY}/checkpoint", world.canaries)
    world.link(f".runs/{'4b' * 8}", world.canaries)


def deliver_fifos(world):
    """Pipes in place of the files of runs: an open would wait for a writer."""
    for name in (
        "lock",
        f"{KEY}.lock",
        f"{KEY}/key.json",
        f"{KEY}/heartbeat.json",
        f"{KEY}/finished.json",
        f"{KEY}/logs.jsonl",
        "params-journal.json",
        "missing-deps.json",
        "dvc.lock",
        "../.dvc/tmp/exps/rwlock",
        "../.dvc/tmp/exps/standalone/run/a/a.run",
        "../.dvc/tmp/exps/run/a/a.json",
    ):
        path = world.origin / ".runs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)


def deliver_nested_values(world):
    """Lists within lists, which end the reader of JSON, in place of each file that others may write."""
    names = (f"{KEY}.lock", f"{KEY}/key.json", f"{KEY}/heartbeat.json", "params-journal.json")
    for name in (*names, "missing-deps.json", "../.dvc/tmp/exps/standalone/run/a/a.run"):
        world.write(f".runs/{name}", "[" * 100_000)


def deliver_odd_numbers(world):
    """A run whose epochs are a hundred billion, or infinite."""
    for name in ("model-99999999999.mpk.gz", "trainer-99999999999.mpk.gz"):
        world.write(f".runs/{KEY}/checkpoint/{name}", "")
    world.write(f".runs/{KEY}/train/epoch-99999999999/Loss.log", "0.5,1")
    world.write(f".runs/{KEY}/key.json", json.dumps({"version": "1"}))
    beat = {"pid": 1, "host": "h", "boot": "b", "started": "1", "first_epoch": 1, "epoch": math.inf}
    beat |= {"epochs": 2, "split": "train", "step": 1, "steps": 2, "time": "2026-01-01T00:00:00"}
    world.write(f".runs/{KEY}/heartbeat.json", json.dumps(beat))
    owner = json.dumps({"pid": math.inf, "cmd": "dvc"})
    world.write(".dvc/tmp/exps/rwlock", f'{{"write": {{"workspace": {owner}}}}}')


def deliver_bare_repository(world):
    """The files of a bare repository, with a setting that names a program which git runs."""
    world.write("HEAD", "ref: refs/heads/main\n")
    world.write("objects/pack/.keep", "")
    world.write("refs/heads/.keep", "")
    program = f"fsmonitor = echo git >> {world.marker}; false"
    world.write("config", f"[core]\n    bare = false\n    worktree = .\n    {program}\n")


def deliver_runs_link(world):
    """A link in place of the folder of the run stores."""
    world.link(".runs", world.canary("runs/note").parent)


BOMB_PLACES = {
    "params.yaml": "channels: [16, 32]",
    "dvc.yaml": "config: artifacts/config.json",
    "dvc.lock": "num_epochs: 2",
}
"""The text in each YAML file whose value becomes a billion values."""


def deliver_bomb(name):
    """Return a function that delivers a YAML file with aliases that expand to a billion values."""

    def deliver(world):
        text = (world.origin / name).read_text()
        before, old, after = text.partition(BOMB_PLACES[name])
        assert old, text
        value = "[x, x, x, x, x, x, x, x, x, x]"
        for level in range(10):
            value = f"[&a{level} {value}{f', *a{level}' * 9}]"
        world.write(name, f"{before}{old.partition(':')[0]}: {value}{after}")

    return deliver


def deliver_matrix(world):
    """A stage for each of ten billion combinations of values."""
    values = "".join(f"      k{number}: {list(range(10))}\n" for number in range(10))
    text = (world.origin / "dvc.yaml").read_text().rstrip()
    world.write("dvc.yaml", f"{text}\n  many:\n    cmd: 'true'\n    matrix:\n{values}")


def deliver_variables(path):
    """Return a function that delivers a dvc.yaml whose variables are those in the file *path*."""

    def deliver(world):
        text = (world.origin / "dvc.yaml").read_text()
        assert "vars:\n" in text
        world.write("dvc.yaml", text.replace("vars:\n", f"vars:\n  - {path}\n", 1))

    return deliver


def deliver_device(name, device="/dev/zero"):
    """Return a function that delivers a link to a file without an end in place of the file *name*."""
    return lambda world: world.link(name, device)


def deliver_lock(**changes):
    """Return a function that delivers a dvc.lock with an output of that *path* and *md5*."""

    def deliver(world):
        code = b"import os\n"
        values = {"path": "artifacts/odd", "md5": world.put(code)} | changes
        values = {key: value.format(world=world) for key, value in values.items()}
        world.write_lock(**put_results(world, {"code": code}), **{values["path"]: values["md5"]})
        text = (world.origin / "dvc.yaml").read_text().rstrip() + f"\n      - {values['path']}\n"
        world.write("dvc.yaml", text)

    return deliver


def deliver_list(relpath, md5=None):
    """Return a function that delivers a list of files with the path *relpath*, and the object *md5*."""

    def deliver(world):
        name = relpath.format(world=world)
        world.write_lock(**put_results(world, {name: md5.format(world=world) if md5 else b"import os\n"}))

    return deliver


@dataclass(frozen=True)
class make_learner:  # noqa: N801  a function with an attribute
    """A learner.json whose model has the *kind*, and a record without names, which needs it."""

    kind: str

    @property
    def content(self):
        optimizer, schedule = {"kind": "adam", "learning_rate": 0.1}, {"kind": "constant"}
        shapes = {"input_shape": [1, 8, 8], "num_classes": 10, "num_outputs": 10}
        return json.dumps(
            {"model": {"kind": self.kind}, "optimizer": optimizer, "schedule": schedule} | shapes
        )

    def __call__(self, world):
        world.write("artifacts/learner/learner.json", self.content)
        BinFileRecorder().record({"weight": 1.5}, world.origin / "artifacts/learner/record")


ODD_PATHS = (
    "../../../canaries/new.pth",
    "{world.canaries}/new.pth",
    "a//b",
    "./a",
    "a/../../b",
    "",
    "a\0b",
    "..",
)
"""Names of files that no list of DVC has."""
ODD_HASHES = (
    "../../../../../canaries/canary",
    "..",
    "{world.canaries}/canary",
    "",
    "ABCDEF",
    "0" * 31,
    "0" * 32 + ".dir.dir",
)
"""Names of objects that are not hashes."""
TRACKED = {
    "nothing": lambda world: None,
    "temporary links": deliver_temporary_links,
    "journal": deliver_journal,
    "lock links": deliver_lock_links,
    "links for DVC": deliver_links_for_dvc,
    "site cache": deliver_site_cache,
    "local settings": deliver_local_settings,
    "store": deliver_store,
    "link to runs": deliver_runs_link,
    "names": deliver_names,
    "modules": deliver_modules,
    "learner.json": make_learner("csv:Net"),
    "device as log": deliver_device("artifacts/train/epoch-1/Loss.log"),
    "device as record": deliver_device("artifacts/model.mpk.gz"),
    "device as versions": deliver_device("versions.yaml"),
    "device as ignore file": deliver_device(".dvcignore"),
    "bomb in params": deliver_bomb("params.yaml"),
    "bomb in dvc.yaml": deliver_bomb("dvc.yaml"),
    "bomb in dvc.lock": deliver_bomb("dvc.lock"),
    "matrix": deliver_matrix,
    "device as variables": deliver_variables("/dev/zero"),
    "list as variables": deliver_variables("../canaries/canary"),
    "device as params": deliver_device("params.yaml"),
    "device as dvc.yaml": deliver_device("dvc.yaml"),
    "device as dvc.lock": deliver_device("dvc.lock"),
    "device as pointer": deliver_device("images.dvc"),
    "output outside": deliver_lock(path="../canaries/new.pth"),
    "absolute output": deliver_lock(path="{world.canaries}/new.pth"),
    "object outside": deliver_lock(md5="../../../../../canaries/canary"),
    "list outside": deliver_list("../../../canaries/new.pth"),
    "list with an object outside": deliver_list("x", "../../../../../canaries/canary"),
}
"""What a repository may deliver, by name."""
UNTRACKED = {
    "temporary links": deliver_temporary_links,
    "lock links": deliver_lock_links,
    "store": deliver_store,
    "pipes": deliver_fifos,
    "nested values": deliver_nested_values,
    "odd numbers": deliver_odd_numbers,
}
"""What other users and programs may leave in a project, by name."""
