"""New projects, which ``learner init`` creates for a user's own model and data."""

import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from urllib.parse import unquote, urlparse

from dvc.exceptions import DvcException
from dvc.repo import Repo
from packaging.requirements import Requirement

from pipeline.project import versions
from pipeline.project.collision import find_collision
from pipeline.project.git import find_top, run_git, try_git
from pipeline.project.paths import SITE_CACHE_VARIABLE, check_path
from stages.contracts.errors import ParamsError, StageError, closest
from stages.system.files import write_text

PLOT = ".dvc/plots/confusion_counts.json"
"""Template of plots, which DVC reads from that folder."""
NAMES_IN_PROJECT = {
    "gitignore": ".gitignore",
    "dvcignore": ".dvcignore",
    "pipeline.yaml": "dvc.yaml",
    "confusion_counts.json": PLOT,
}
"""Template files with another name here, because git and DVC would otherwise read them here."""
LOCAL = "local.mk"
"""Makefile with the paths of this machine, which git ignores."""
README = "README.md"
DEPLOYMENT = "prefect.yaml"
REQUIREMENTS = "requirements.txt"
SCAFFOLD = files("pipeline.scaffold")
BASE = SCAFFOLD / "template"
"""The files that every project has."""
TEMPLATES = SCAFFOLD / "templates"
"""A folder for each template: the files that it adds to those of `BASE`, or has instead of them."""
DEFAULT_TEMPLATE = "minimal"
MERGED = {".gitignore", ".dvcignore"}
"""Files that may exist, but need the lines of the template."""
MAY_EXIST = {*MERGED, README, DEPLOYMENT}
COMMIT_MESSAGE = "Create the project with learner init"
DVC_CONFIG = "[core]\n    analytics = false\n    check_update = false\n    autostage = false\n"
ORIGIN = "direct_url.json"
"""File in which pip records the source of a package, unless that is an index."""


@dataclass(frozen=True)
class Installation:
    """The files with which a project makes pip install this package."""

    requirement: str
    """Line for requirements.txt, the same on every machine."""
    local: str | None = None
    """Content of local.mk, which is specific to this machine; None if the requirement is sufficient."""


def list_templates() -> list[str]:
    """Return the names of the templates, in the order of the alphabet after the default."""
    names = sorted(entry.name for entry in TEMPLATES.iterdir() if (entry / README).is_file())
    return [DEFAULT_TEMPLATE, *(name for name in names if name != DEFAULT_TEMPLATE)]


def describe_templates() -> dict[str, str]:
    """Return the description of each template, from the top of its README, by its name."""
    readmes = {name: TEMPLATES / name / README for name in list_templates()}
    return {name: readme.read_text(encoding="utf-8").splitlines()[2] for name, readme in readmes.items()}


def make_project(directory: Path, template: str) -> tuple[list[str], str | None, list[str]]:
    """Create a project in *directory*, and commit it.

    Return the names of the files that git tracks, the commit, None if git refuses it, and lines about the
    project and the next commands. Raises `ParamsError`, and writes nothing, if there is no template of the
    name *template*, if one of its files already exists, if a package in *directory* has the name of one of
    ours, and as `check_path` does.
    """
    check_path(directory.resolve())
    if collision := find_collision(directory):
        raise ParamsError(collision)
    bin_folder = environment_bin()
    texts = project_files(find_installation(versions.find_this_package()), bin_folder, template=template)
    plot = texts.pop(PLOT)
    existing = _write_files(directory, texts)
    added = [PLOT, *(name for name in texts if name not in (LOCAL, *existing)), *_git_and_dvc(directory)]
    if not (directory / PLOT).exists():
        write_text(directory / PLOT, plot)  # after `dvc init`, which requires that .dvc does not exist
    run_git(directory, "add", "--", *added)
    added_files = sorted(read_template(template).keys() - {README, REQUIREMENTS})
    notes = [f"{directory} has the template {template}: {', '.join(added_files)}"]
    for name, missing in existing.items():
        if missing:
            notes.append(f"{directory / name} exists. Add these lines to it:\n  " + "\n  ".join(missing))
    commit, note = _commit(directory, added)
    notes.append(note)
    if bin_folder:
        notes.append(f"environment: {bin_folder.parent}, from {directory / LOCAL}, which git ignores")
        notes += report_missing_packages(directory, texts[REQUIREMENTS])
    return sorted(added), commit, [*notes, *_next_steps(directory, bin_folder)]


def project_files(
    package: Installation, bin_folder: Path | None = None, *, template: str = DEFAULT_TEMPLATE
) -> dict[str, str]:
    """Return the content of every file of a new project, by name.

    *package* is the requirement of this package for pip. *bin_folder* has the programs of the environment
    that the project's Makefile uses on this machine; if it is None, the Makefile installs one. Raises
    `ParamsError` if there is no template of the name *template*.
    """
    base, files_of_template = _read_files(BASE), read_template(template)
    texts = base | files_of_template
    texts |= {
        README: f"{files_of_template[README]}\n{base[README]}",
        REQUIREMENTS: f"{package.requirement}\n{texts[REQUIREMENTS]}",
        "versions.yaml": versions.text(),
    }
    local = package.local or ""
    if bin_folder:
        local += f"LEARNER_BIN := {make_value(str(bin_folder))}\n"
    return texts | ({LOCAL: local} if local else {})


def read_template(name: str) -> dict[str, str]:
    """Return the content of the files that the template *name* adds or replaces, by their names in a project.

    Raises `ParamsError` if there is no such template.
    """
    names = list_templates()
    if name not in names:
        raise ParamsError(
            f"there is no template {name!r}. Use one of {', '.join(names)}.{closest(name, names)}"
        )
    return _read_files(TEMPLATES / name)


def _read_files(folder: Traversable) -> dict[str, str]:
    """Return the content of the files in *folder*, by their names in a project."""
    return {
        NAMES_IN_PROJECT.get(file.name, file.name): file.read_text(encoding="utf-8")
        for file in folder.iterdir()
        if file.is_file()
    }


def find_installation(package: Distribution) -> Installation:
    """Return how to repeat the installation of *package*: from an index, a URL, or a folder."""
    origin = json.loads(package.read_text(ORIGIN) or "{}")
    url = str(origin.get("url", ""))
    name = package.metadata["Name"]
    if not url:
        return Installation(f"{name}=={package.version}")
    if url.startswith("file:"):
        editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
        comment = f"# {name} {package.version}: from LEARNER, in local.mk or as in `make LEARNER=PATH_OR_URL`"
        path = unquote(urlparse(url).path).replace("'", "'\\''")  # one word in the shell
        return Installation(comment, f"LEARNER := {editable}" + make_value(f"'{path}'") + "\n")
    control = origin.get("vcs_info")
    if control:
        return Installation(f"{name} @ {control['vcs']}+{url}@{control['commit_id']}")
    return Installation(f"{name} @ {url}")


def environment_bin() -> Path | None:
    """Return the folder of this environment's programs; None if ``learner`` is not among them."""
    folder = Path(sys.executable).parent
    return folder if (folder / "learner").exists() else None


def make_value(text: str) -> str:
    """Return *text* as the value of a variable in a makefile."""
    return text.replace("$", "$$").replace("#", "\\#")


def _write_files(directory: Path, texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Write *texts*, and return the missing lines of each file in `MAY_EXIST` that already exists.

    Raises `ParamsError`, and writes nothing, if another file exists.
    """
    if directory.exists() and not directory.is_dir():
        raise ParamsError(f"{directory} is a file. Pass a folder, or a name that does not exist")
    taken = sorted(name for name in texts if (directory / name).exists() and name not in MAY_EXIST)
    if taken:
        raise ParamsError(
            f"{directory} already has {', '.join(taken)}; existing files are never overwritten. "
            "Pass another folder"
        )
    lacking = {}
    for name, text in texts.items():
        path = directory / name
        if path.exists():
            present = path.read_text(encoding="utf-8").splitlines()
            lacking[name] = [line for line in text.splitlines() if line not in present and name in MERGED]
        else:
            write_text(path, text)
    return lacking


def _git_and_dvc(directory: Path) -> list[str]:
    """Make *directory* a git repository and a DVC project if needed; return the files that DVC adds."""
    directory = directory.resolve()
    if find_top(directory) is None:
        run_git(directory, "init", "--quiet")
    if (directory / ".dvc").exists():
        return []
    logging.getLogger("dvc").setLevel(logging.WARNING)
    try:
        Repo.init(str(directory), subdir=find_top(directory) != directory).close()
    except DvcException as error:
        raise StageError(f"DVC cannot create a project in {directory}: {error}") from error
    (directory / ".dvc/config").write_text(DVC_CONFIG)
    if state := os.environ.get(SITE_CACHE_VARIABLE):  # git ignores this file
        (directory / ".dvc/config.local").write_text(f'[core]\n    site_cache_dir = "{state}"\n')
    return [".dvc/config", ".dvc/.gitignore"]


def _commit(directory: Path, names: Sequence[str]) -> tuple[str | None, str]:
    """Commit the files *names* only, and return the commit with a line about it.

    The commit is None if git refuses it; the line then has the reason and the command.
    """
    command = f'{_enter(directory)}git commit -m "{COMMIT_MESSAGE}" -- .'
    identity = ["-c", "user.useConfigOnly=true", "var"]  # DVC also refuses an identity that git guesses
    variables = ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT")
    if any(try_git(directory, *identity, name).returncode for name in variables):
        return None, (
            "not committed: git has no name and email for you, and `dvc exp run` needs both and a commit. "
            "Run:\n"
            '  git config --global user.name "Your Name"\n'
            '  git config --global user.email "you@example.com"\n'
            f"  {command}"
        )
    done = try_git(directory, "commit", "--quiet", "-m", COMMIT_MESSAGE, "--", *names)
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().replace("\n", "\n  ")
        return None, (
            f"not committed: `git commit` exited with {done.returncode}:\n  {reason}\n"
            f"`dvc exp run` needs a commit. Remove the cause, and run:\n  {command}"
        )
    commit = try_git(directory, "rev-parse", "--short", "HEAD").stdout.strip()
    return commit, f"committed as {commit}: {COMMIT_MESSAGE}"


def report_missing_packages(directory: Path, requirements: str) -> Iterator[str]:
    """Yield a line if packages of *requirements*, after its first line, are not in this environment."""
    _, *lines = requirements.splitlines()
    missing = [line for line in lines if not any(distributions(name=Requirement(line).name))]
    if missing:
        yield (
            f"not installed: {', '.join(missing)}. Run: "
            f"{sys.executable} -m pip install -r {shlex.quote(str(directory / REQUIREMENTS))}"
        )


def _next_steps(directory: Path, bin_folder: Path | None) -> Iterator[str]:
    """Yield the next commands, in a form for the shell that ran ``learner init``."""
    if bin_folder is None:
        yield f"next: {_enter(directory)}make repro"
        return
    program = shutil.which("learner")
    if program is None or Path(program).parent.resolve() != bin_folder.resolve():
        activate = bin_folder / "activate"
        path = shlex.quote(str(bin_folder))
        yield (
            f"next: . {shlex.quote(str(activate))}"
            if activate.exists()
            else f"next: export PATH={path}:$PATH"
        )
        yield f"then: {_enter(directory)}dvc exp run && learner compare"
    else:
        yield f"next: {_enter(directory)}dvc exp run && learner compare"


def _enter(directory: Path) -> str:
    """Return the beginning of a command line that runs in *directory*."""
    return "" if directory.resolve() == Path.cwd() else f"cd {shlex.quote(str(directory))} && "
