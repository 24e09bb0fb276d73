"""What ``learner init`` makes: a project for a user's own model and data, which depends on this package."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from pipeline import versions
from pipeline.collision import find_collision
from pipeline.engine.git import run_git, try_git
from pipeline.installation import (
    Installation,
    environment_bin,
    find_installation,
    find_this_package,
    make_value,
)
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.files import write_text

PLOT = ".dvc/plots/confusion_counts.json"
"""A template of plots, which DVC looks for there."""
NAMES = {
    "gitignore": ".gitignore",
    "dvcignore": ".dvcignore",
    "pipeline.yaml": "dvc.yaml",
    "confusion_counts.json": PLOT,
}
"""What git and DVC would obey in this project, too, is kept under another name."""
LOCAL = "local.mk"
"""Says what only this machine knows; git ignores it."""
README = "README.md"
MAY_BE_THERE = {".gitignore", ".dvcignore", README}
COMMIT_MESSAGE = "Create the project with learner init"
DVC_CONFIG = "[core]\n    analytics = false\n    check_update = false\n    autostage = false\n"


def make_project(directory: Path) -> Iterator[str]:
    """Make a project in *directory*, commit it, and report what is in it and what to run next.

    Raises `ParamsError`, and writes nothing, if one of its files exists already or if a package in
    *directory* has the name of one of ours.
    """
    collision = find_collision(directory)
    if collision:
        raise ParamsError(str(collision))
    bin_folder = environment_bin()
    texts = project_files(find_installation(find_this_package()), bin_folder)
    plot = texts.pop(PLOT)
    there = _written(directory, texts)
    added = [PLOT, *(name for name in texts if name not in (LOCAL, *there)), *_git_and_dvc(directory)]
    if not (directory / PLOT).exists():
        write_text(directory / PLOT, plot)  # only now: DVC wants to make the folder itself
    run_git(directory, "add", "--", *added)
    yield f"{directory} has a model (model.py), its data (source.py), params.yaml, dvc.yaml and a test"
    for name, missing in there.items():
        if missing:
            yield f"{directory / name} was there; add to it:\n  " + "\n  ".join(missing)
    yield from _commit(directory, added)
    if bin_folder:
        yield f"environment: {bin_folder.parent}, from {directory / LOCAL}, which git ignores"
    yield from _next_steps(directory, bin_folder)


def project_files(where: Installation, bin_folder: Path | None = None) -> dict[str, str]:
    """Return every file of a new project, by its name.

    *where* is where pip finds this package. *bin_folder* has the programs of the environment that the
    project's Makefile uses on this machine; None makes it install one.
    """
    template = files("pipeline.scaffold") / "template"
    texts = {
        NAMES.get(each.name, each.name): each.read_text(encoding="utf-8")
        for each in template.iterdir()
        if each.is_file()
    }
    texts |= {"versions.yaml": versions.text(), "requirements.txt": f"{where.requirement}\npytest>=8\n"}
    local = where.local or ""
    if bin_folder:
        local += f"LEARNER_BIN := {make_value(str(bin_folder))}\n"
    return texts | ({LOCAL: local} if local else {})


def _written(directory: Path, texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Write *texts*; for each that may be there before, and is, the lines that it lacks.

    Raises `ParamsError`, and writes nothing, where another one is there.
    """
    if directory.exists() and not directory.is_dir():
        raise ParamsError(f"{directory} is a file: give a folder, or a name that is free")
    taken = sorted(name for name in texts if (directory / name).exists() and name not in MAY_BE_THERE)
    if taken:
        raise ParamsError(
            f"{directory} has {', '.join(taken)} already, and nothing is overwritten: take another folder"
        )
    lacking = {}
    for name, text in texts.items():
        path = directory / name
        if path.exists():
            there = path.read_text(encoding="utf-8").splitlines()
            lacking[name] = [line for line in text.splitlines() if line not in there and name != README]
        else:
            write_text(path, text)
    return lacking


def _git_and_dvc(directory: Path) -> list[str]:
    """Make *directory* a git repository and a DVC project if it is not; return the files that DVC adds."""
    top = _git_top(directory)
    if top is None:
        run_git(directory, "init", "--quiet")
        top = directory.resolve()
    if (directory / ".dvc").exists():
        return []
    own = [] if top == directory.resolve() else ["--subdir"]
    _run_dvc(directory, "init", "--quiet", *own)
    (directory / ".dvc/config").write_text(DVC_CONFIG)
    return [".dvc/config", ".dvc/.gitignore"]


def _commit(directory: Path, names: Sequence[str]) -> Iterator[str]:
    """Commit the files *names*, and nothing else; report why if git does not, and how to do it."""
    by_hand = f'{_enter(directory)}git commit -m "{COMMIT_MESSAGE}" -- .'
    identity = ["-c", "user.useConfigOnly=true", "var"]  # DVC takes no guessed identity either
    names_of_person = ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT")
    if any(try_git(directory, *identity, name).returncode for name in names_of_person):
        yield (
            "not committed: git has no name and email for you, and `dvc exp run` needs both and a commit. "
            "Run:\n"
            '  git config --global user.name "Your Name"\n'
            '  git config --global user.email "you@example.com"\n'
            f"  {by_hand}"
        )
        return
    done = try_git(directory, "commit", "--quiet", "-m", COMMIT_MESSAGE, "--", *names)
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().replace("\n", "\n  ")
        yield (
            f"not committed: `git commit` exited with {done.returncode}:\n  {reason}\n"
            f"`dvc exp run` needs a commit. Remove the cause, and run:\n  {by_hand}"
        )
        return
    commit = try_git(directory, "rev-parse", "--short", "HEAD").stdout.strip()
    yield f"committed as {commit}: {COMMIT_MESSAGE}"


def _next_steps(directory: Path, bin_folder: Path | None) -> Iterator[str]:
    """The commands to run next, as they work in the shell that ran ``learner init``."""
    if bin_folder is None:
        yield f"next: {_enter(directory)}make repro"
        return
    found = shutil.which("learner")
    if found is None or Path(found).parent.resolve() != bin_folder.resolve():
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
    """The start of a command line that runs in *directory*."""
    return "" if directory.resolve() == Path.cwd() else f"cd {shlex.quote(str(directory))} && "


def _git_top(directory: Path) -> Path | None:
    """The root of the git repository that *directory* is in; None where it is in none."""
    found = try_git(directory, "rev-parse", "--show-toplevel")
    return Path(found.stdout.strip()).resolve() if found.returncode == 0 else None


def _run_dvc(directory: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "dvc", *arguments]
    done = subprocess.run(  # noqa: S603  DVC, of this environment
        command, cwd=directory, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise StageError(f"`{' '.join(command)}` in {directory} ended with {done.returncode}: {done.stderr}")
