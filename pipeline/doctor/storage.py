"""Checks of DVC's storage: that remotes answer, and that the files in the cache are intact."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from dvc.config import Config, ConfigError
from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline.doctor.diagnostics import Diagnostic, ok, problem, warning
from pipeline.engine.cache_content import find_damaged_files

REMOTE_TIMEOUT_SECONDS = 8.0
"""Time limit of a remote, long enough to log in to a distant one; the defaults of the clients are longer."""
PROGRAM = (
    "import sys; from pipeline.doctor.storage import print_remote_state; print_remote_state(sys.argv[1])"
)
REMEDY = "`learner push` and `learner pull` need it. Check its address, your access, and the network"


def check_remotes() -> Iterator[Diagnostic]:
    """Check that DVC has a default remote, and that each remote answers.

    Each remote is accessed in a separate process, which is killed after `REMOTE_TIMEOUT_SECONDS`.
    """
    try:
        config = Config(Repo.find_dvc_dir())
    except (DvcException, ConfigError) as error:
        message = f"this folder is not a DVC project: {error}"
        yield problem("remotes", message, "Run `git init` and `dvc init`")
        return
    names = list(config["remote"])
    if not names:
        message = "no remote is configured: DVC's cache is stored on this machine only"
        yield warning("remotes", message, "dvc remote add --default NAME URL")
        return
    if config["core"].get("remote") not in names:
        message = f"none of {', '.join(names)} is the default"
        yield warning("remotes", message, f"dvc remote default {names[0]}")
    with ThreadPoolExecutor(len(names)) as pool:
        urls = [config["remote"][name].get("url", "") for name in names]
        yield from pool.map(_check_remote, names, urls)


def _check_remote(name: str, url: str) -> Diagnostic:
    subject, command = f"remote {name}", [sys.executable, "-c", PROGRAM, name]
    try:
        done = subprocess.run(  # noqa: S603  fixed
            command,
            capture_output=True,
            text=True,
            timeout=REMOTE_TIMEOUT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,  # a question for a password gets no answer
        )
    except subprocess.TimeoutExpired:
        return problem(subject, f"{url} did not answer within {REMOTE_TIMEOUT_SECONDS:g} seconds", REMEDY)
    try:
        state = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}, no message"])[-1]
        return problem(subject, f"{url} is unreachable: {last}", REMEDY)
    if state["filled"]:
        return ok(subject, f"{url} answers")
    bucket = state["path"].partition("/")[0]
    if state["nearest"] in (state["path"], bucket or None):
        return ok(subject, f"{url} answers, and is empty")
    if state["nearest"]:
        remedy = "The first push creates it. If you have pushed before, mount the disk or correct the URL"
        return warning(subject, f"{url} is missing: only {state['nearest']} exists", remedy)
    return problem(subject, f"{url} answers, but has no bucket {bucket!r}", REMEDY)


def print_remote_state(name: str) -> None:
    """Print as JSON whether the remote *name* has data, and the part of its path that exists."""
    with Repo() as repo:
        remote = repo.cloud.get_remote(name)
        path, files = remote.path, remote.fs
        filled = files.exists(repo.cloud.get_remote_odb(name).path)
        nearest = path
        while nearest and not filled and not files.exists(nearest):
            above = files.parent(nearest)
            nearest = "" if above == nearest else above
    sys.stdout.write(json.dumps({"path": path, "filled": filled, "nearest": nearest}) + "\n")


def check_cache() -> Iterator[Diagnostic]:
    """Read every file in DVC's cache, and yield a problem for each that does not have its hash."""
    try:
        with Repo() as repo:
            roots = dict.fromkeys(Path(each).resolve() for each in _cache_folders(repo))
    except DvcException:
        return
    damaged = [path for root in roots for path in find_damaged_files(root)]
    for path in damaged:
        message = f"{path} is damaged: its content does not have the hash in its name"
        remedy = (
            f"rm {path}: `learner doctor --deep --fix` does it. Then `learner pull` fetches it, or the next "
            "run computes it again; data of your own that `dvc add` tracks must be added again"
        )
        yield problem("cache", message, remedy, partial(path.unlink, missing_ok=True))
    if not damaged:
        yield ok("cache", f"every file in {', '.join(map(str, roots))} is intact")


def _cache_folders(repo: Repo) -> Iterator[str]:
    """Yield the folder of the cache and that of the run-cache, which usually is the same."""
    yield repo.cache.local_cache_dir
    yield str(repo.cache.legacy.path)
