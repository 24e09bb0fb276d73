"""Whether DVC's remotes answer: each is asked in a process of its own, which can be ended."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from dvc.config import Config, ConfigError
from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline.doctor.findings import Finding, ok, problem, warning

ANSWER_SECONDS = 8.0
"""For what is far away and has to be logged in to; a library's own patience is a minute and more."""
ASK = "import sys; from pipeline.doctor.remotes import say; say(sys.argv[1])"
HELP = "`learner push` and `learner pull` need it: see its address, your access, and the network"


def remotes() -> Iterator[Finding]:
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


def _asked(name: str, url: str) -> Finding:
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


def say(name: str) -> None:
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
