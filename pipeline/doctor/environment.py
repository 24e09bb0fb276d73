"""Checks of this machine and its services: replaced names, disk space, Prefect, DVC's remotes and state."""

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from shlex import quote

from dvc.config import Config, ConfigError
from dvc.exceptions import DvcException
from dvc.repo import Repo
from packaging.version import Version

from pipeline.doctor.diagnostics import FIX, Diagnostic, ok, problem, warning
from pipeline.flows import prefect_api
from pipeline.project.check import run_program
from pipeline.project.params import read_params
from pipeline.project.paths import SITE_CACHE_VARIABLE, is_private, make_user_folder, read_paths, runs_root
from stages.contracts.text import format_megabytes
from stages.runs.file_names import CHECKPOINT_FOLDER, parse_name
from stages.runs.layout import stores

PATCH_MODULES = (
    "pipeline.engine.dvc_patches",
    "pipeline.flows.prefect_patches",
    "stages.optim.torch_patches",
)
PATCH_PROGRAM = """
import importlib, json, sys
from stages.system.patches import find_problems
modules = [importlib.import_module(name) for name in sys.argv[1:]]
problems = [line for each in modules for line in find_problems(each.PATCHES)]
print(json.dumps({"count": sum(len(each.PATCHES) for each in modules), "problems": problems}))
"""
REMOTE_PROGRAM = (
    "import sys; from pipeline.doctor.environment import print_remote_state; print_remote_state(sys.argv[1])"
)
SETTINGS_FREE_FOLDER = Path("/")
"""A folder in which no repository has put ``prefect.toml``, ``.env`` or ``pyproject.toml``."""
RETRY = "Run `learner doctor` again with a greater --timeout"
REMOTE_REMEDY = "`dvc push` and `dvc pull` need it. Check its address, your access, and the network"
START_ENVIRONMENT = Path("/proc/self/environ")
"""The variables with which this process was started, without those that a command of ours has set since."""
SHARED_FOLDER = Path("/var/tmp/dvc")  # noqa: S108  that of DVC
"""The folder of DVC's state if nothing names another one."""


def check_patches(timeout_seconds: float) -> Iterator[Diagnostic]:
    """Check that the private names that this project replaces in DVC, Prefect and torch are as expected.

    The names are looked up in another process, because that imports all three packages. It runs outside
    of the project: Prefect takes settings from the current folder, which can name programs.
    """
    try:
        done = run_program(
            PATCH_PROGRAM, *PATCH_MODULES, timeout_seconds=timeout_seconds, folder=SETTINGS_FREE_FOLDER
        )
    except subprocess.TimeoutExpired:
        message = f"replaced private names: not checked within {timeout_seconds:g} seconds"
        yield warning("patches", message, RETRY)
        return
    if done.returncode:
        message = f"replaced private names: cannot be checked: {_last_line(done)}"
        yield problem("patches", message, "Reinstall learner-pipeline with its requirements")
        return
    result = json.loads(done.stdout)
    for line in result["problems"]:
        message, _, remedy = line.rpartition(". ")
        yield problem("patches", message, remedy)
    if not result["problems"]:
        yield ok("patches", f"replaced private names: {result['count']}, all as expected")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}, no message"])[-1]


def check_disk() -> Iterator[Diagnostic]:
    """Check that the disk has space for the checkpoints that ``fit.keep`` keeps, and for one more."""
    root = runs_root()
    free = shutil.disk_usage(root if root.exists() else Path()).free
    paths = read_paths()
    folders = [paths["learner"], *stores(root)] if "learner" in paths else stores(root)
    folders = [folder / CHECKPOINT_FOLDER for folder in folders]
    if "checkpoint" in paths:
        folders.append(paths["checkpoint"])
    size = max(map(_newest_size, folders), default=0)
    if not size:
        message = "free; the size of a checkpoint is unknown until build-learner has run"
        yield ok("disk", f"{format_megabytes(free)} {message}")
        return
    yield check_free_space(free, size, read_params().fit.keep.most)


def check_free_space(free: int, size: int, count: int) -> Diagnostic:
    """Check that *free* bytes suffice for *count* checkpoints of *size* bytes each.

    A run needs space for one more; its results need space in the artifact directory and in DVC's cache.
    """
    training, published = size * (count + 1), 2 * size * count
    message = (
        f"{format_megabytes(free)} free; a checkpoint takes {format_megabytes(size)}: training with {count} "
        f"and one more takes {format_megabytes(training)}, and the results in artifacts and DVC's cache "
        f"{format_megabytes(published)} more"
    )
    remedy = "Run `learner runs prune` or `dvc gc --workspace`, or keep fewer checkpoints with fit.keep"
    if free < training:
        return problem("disk", message, remedy)
    return warning("disk", message, remedy) if free < training + published else ok("disk", message)


def _newest_size(folder: Path) -> int:
    """Return the bytes of the newest checkpoint in *folder*; 0 if it has none."""
    sizes: dict[int, int] = {}
    for path in folder.glob("*-*"):
        if parsed := parse_name(path.name):
            sizes[parsed.epoch] = sizes.get(parsed.epoch, 0) + path.stat().st_size
    return sizes[max(sizes)] if sizes else 0


def check_prefect(timeout_seconds: float) -> Iterator[Diagnostic]:
    """Check that the configured Prefect API answers, and that its version is that of the client."""
    url = prefect_api.describe_url()
    if not url:
        yield ok("prefect", "no API is configured: runs are not recorded in Prefect")
        return
    try:
        server = Version(json.loads(prefect_api.request("admin/version", timeout_seconds)))
    except urllib.error.HTTPError as error:
        yield _describe_refusal(url, error.code)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        yield problem(
            "prefect",
            f"no Prefect API answers at {url}: {getattr(error, 'reason', error)}",
            f"Run `prefect server start`, or unset {prefect_api.URL} to run without Prefect",
        )
    else:
        client = version("prefect")
        if str(server).split(".")[:2] != client.split(".")[:2]:
            remedy = f"pip install 'prefect=={server}', or install {client} on the server"
            yield warning(
                "prefect", f"{url} answers; its version is {server}, that of the client {client}", remedy
            )
        else:
            yield ok("prefect", f"{url} answers; its version is {server}")
        yield from _check_login(url, timeout_seconds)


def _check_login(url: str, timeout_seconds: float) -> Iterator[Diagnostic]:
    """Check that an API which other machines may reach needs a login."""
    if prefect_api.is_on_loopback() or prefect_api.needs_login(timeout_seconds):
        return
    message = f"{url} needs no login: whoever reaches it can start runs, and run code through a worker"
    remedy = (
        "Set PREFECT_SERVER_API_AUTH_STRING=USER:PASSWORD for the server, and PREFECT_API_AUTH_STRING to the "
        "same for its clients, or let the server listen on 127.0.0.1"
    )
    yield warning("prefect", message, remedy)


def _describe_refusal(url: str, code: int) -> Diagnostic:
    if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        remedy = "Set PREFECT_API_KEY (Prefect Cloud) or PREFECT_API_AUTH_STRING (your own server)"
        return problem("prefect", f"{url} denies access: HTTP {code}", remedy)
    if code == HTTPStatus.NOT_FOUND and "api.prefect.cloud" in url:
        return ok("prefect", f"{url} answers")
    return problem("prefect", f"{url} answers HTTP {code}", "Correct the address; it usually ends in /api")


def check_remotes(timeout_seconds: float) -> Iterator[Diagnostic]:
    """Check that DVC has a default remote, and that each remote answers.

    Each remote is accessed in a separate process, which is killed after *timeout_seconds*.
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
        yield warning("remotes", message, f"dvc remote default {quote(names[0])}")
    with ThreadPoolExecutor(len(names)) as pool:
        urls = [config["remote"][name].get("url", "") for name in names]
        yield from pool.map(partial(_check_remote, timeout_seconds=timeout_seconds), names, urls)


def _check_remote(name: str, url: str, *, timeout_seconds: float) -> Diagnostic:
    subject = f"remote {name}"
    try:
        done = run_program(REMOTE_PROGRAM, name, timeout_seconds=timeout_seconds)
    except subprocess.TimeoutExpired:
        message = f"{url} did not answer within {timeout_seconds:g} seconds"
        return problem(subject, message, REMOTE_REMEDY)
    try:
        state = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return problem(subject, f"{url} is unreachable: {_last_line(done)}", REMOTE_REMEDY)
    if state["filled"]:
        return ok(subject, f"{url} answers")
    bucket = state["path"].partition("/")[0]
    if state["nearest"] in (state["path"], bucket or None):
        return ok(subject, f"{url} answers, and is empty")
    if state["nearest"]:
        remedy = "The first push creates it. If you have pushed before, mount the disk or correct the URL"
        return warning(subject, f"{url} is missing: only {state['nearest']} exists", remedy)
    return problem(subject, f"{url} answers, but has no bucket {bucket!r}", REMOTE_REMEDY)


def print_remote_state(name: str) -> None:
    """Print as JSON whether the remote *name* has data, and the part of its path that exists."""
    with Repo() as repo:
        remote = repo.cloud.get_remote(name)
        path, files = remote.path, remote.fs
        filled = files.exists(repo.cloud.get_remote_odb(name).path)
        nearest = path
        while nearest and not filled and not files.exists(nearest):
            parent = files.parent(nearest)
            nearest = "" if parent == nearest else parent
    sys.stdout.write(json.dumps({"path": path, "filled": filled, "nearest": nearest}) + "\n")


def check_state_folder() -> Iterator[Diagnostic]:
    """Check that no other user can write where DVC keeps its state when the user runs ``dvc``."""
    try:
        directory = Repo.find_dvc_dir()
        configured = Config(directory)["core"].get("site_cache_dir")
    except (DvcException, ConfigError):
        return
    folder = Path(_read_variable() or configured or SHARED_FOLDER)
    if is_private(folder):
        yield ok("state", f"DVC keeps its state in {folder}, which only you can write")
        return
    message = f"dvc keeps its state, which it unpickles, in {folder}, where other users can write"
    remedy = f"Set core.site_cache_dir or {SITE_CACHE_VARIABLE} to a folder of yours: {FIX}"
    yield warning("state", message, remedy, partial(_use_user_folder, directory))


def _read_variable() -> str | None:
    name = f"{SITE_CACHE_VARIABLE}=".encode()
    for variable in START_ENVIRONMENT.read_bytes().split(b"\0"):
        if variable.startswith(name):
            return os.fsdecode(variable.removeprefix(name))
    return None


def _use_user_folder(directory: str) -> None:
    """Name the folder of this user in the settings of this clone, which git ignores."""
    folder = make_user_folder("dvc")
    with Config(directory).edit("local") as settings:
        settings["core"]["site_cache_dir"] = str(folder)
