"""Whether DVC's remotes answer: each is asked in a process of its own, which can be ended."""

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

ANSWER_SECONDS = 8.0
"""For what is far away and has to be logged in to; a library's own patience is a minute and more."""
ASK = "import sys; from pipeline.doctor.storage import print_remote_state; print_remote_state(sys.argv[1])"
HELP = "`learner push` and `learner pull` need it: see its address, your access, and the network"


def check_remotes() -> Iterator[Diagnostic]:
    """A finding for each remote that is set up."""
    try:
        config = Config(Repo.find_dvc_dir())
    except (DvcException, ConfigError) as error:
        yield problem("remotes", f"DVC does not know this folder: {error}", "`git init`, and `dvc init`")
        return
    names = list(config["remote"])
    if not names:
        what = "none is set up: what DVC's cache has is on this machine alone"
        yield warning("remotes", what, "dvc remote add --default NAME URL")
        return
    if config["core"].get("remote") not in names:
        what = f"none of {', '.join(names)} is the default"
        yield warning("remotes", what, f"dvc remote default {names[0]}")
    with ThreadPoolExecutor(len(names)) as pool:
        urls = [config["remote"][name].get("url", "") for name in names]
        yield from pool.map(_asked, names, urls)


def _asked(name: str, url: str) -> Diagnostic:
    about, command = f"remote {name}", [sys.executable, "-c", ASK, name]
    try:
        done = subprocess.run(  # noqa: S603  fixed
            command,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,  # nobody is there to be asked for a password
        )
    except subprocess.TimeoutExpired:
        return problem(about, f"{url} did not answer in {ANSWER_SECONDS:g} seconds", HELP)
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        return problem(about, f"{url} cannot be reached: {last}", HELP)
    if answer["filled"]:
        return ok(about, f"{url} answers")
    bucket = answer["path"].partition("/")[0]
    if answer["nearest"] in (answer["path"], bucket or None):
        return ok(about, f"{url} answers, and has nothing yet")
    if answer["nearest"]:
        cure = "the first push makes it; if there was one: is a disk not mounted, or the name wrong?"
        return warning(about, f"{url}: there is {answer['nearest']}, and nothing in it of that name", cure)
    return problem(about, f"{url} answers, and has no {bucket!r}", HELP)


def print_remote_state(name: str) -> None:
    """Print, for the process that asked, whether remote *name* has something, and how much of its path is."""
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
    """Yield a finding for each damaged file of the cache."""
    try:
        with Repo() as repo:
            roots = dict.fromkeys(Path(each).resolve() for each in _roots(repo))
    except DvcException:
        return
    damaged = [place for root in roots for place in find_damaged_files(root)]
    for place in damaged:
        what = f"{place} is damaged: its content does not have the hash in its name"
        cure = (
            f"rm {place}: `learner doctor --deep --fix` does it. Then `learner pull` fetches it, or the next "
            "run computes it again; data of your own that `dvc add` tracks must be added again"
        )
        yield problem("cache", what, cure, partial(place.unlink, missing_ok=True))
    if not damaged:
        yield ok("cache", f"every file in {', '.join(map(str, roots))} is intact")


def _roots(repo: Repo) -> Iterator[str]:
    """Yield the folder of the cache, and that of the run-cache, which is the same as a rule."""
    yield repo.cache.local_cache_dir
    yield str(repo.cache.legacy.path)
