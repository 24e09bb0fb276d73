"""What ``learner init`` makes: a project for a user's own model and data, which depends on this package."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from pipeline import versions
from pipeline.collision import find_collision
from pipeline.installation import Installation, installation, this_package
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
MAY_BE_THERE = {".gitignore", ".dvcignore"}
DVC_CONFIG = "[core]\n    analytics = false\n    check_update = false\n    autostage = false\n"


def make_project(directory: Path) -> Iterator[str]:
    """Make a project in *directory*, and say what is in it and what comes next.

    Raises `ParamsError`, and writes nothing, where a file of it is there already.
    """
    collision = find_collision(directory)
    if collision:
        raise ParamsError(str(collision))
    texts = project_files(installation(this_package()))
    plot = texts.pop(PLOT)
    there = _written(directory, texts)
    _git_and_dvc(directory)
    if not (directory / PLOT).exists():
        write_text(directory / PLOT, plot)  # only now: DVC wants to make the folder itself
    _run(["git", "add", "--", PLOT, *(name for name in texts if name not in (LOCAL, *there))], directory)
    yield f"{directory} has a model (model.py), its data (source.py), params.yaml, dvc.yaml and a test"
    for name, missing in there.items():
        if missing:
            yield f"{directory / name} was there; add to it:\n  " + "\n  ".join(missing)
    enter = "" if directory.resolve() == Path.cwd() else f"cd {directory} && "
    yield f"next: {enter}make repro, and make test"


def project_files(where: Installation) -> dict[str, str]:
    """Every file of a new project, by its name; *where* is where pip finds this package."""
    template = files("pipeline") / "template"
    texts = {
        NAMES.get(each.name, each.name): each.read_text(encoding="utf-8")
        for each in template.iterdir()
        if each.is_file()
    }
    texts |= {"versions.yaml": versions.text(), "requirements.txt": f"{where.requirement}\npytest>=8\n"}
    return texts | ({LOCAL: where.local} if where.local else {})


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
            lacking[name] = [line for line in text.splitlines() if line not in there]
        else:
            write_text(path, text)
    return lacking


def _git_and_dvc(directory: Path) -> None:
    """Make *directory* a git repository and a DVC project, as far as it is not."""
    top = _git_top(directory)
    if top is None:
        _run(["git", "init", "--quiet"], directory)
        top = directory.resolve()
    if not (directory / ".dvc").exists():
        own = [] if top == directory.resolve() else ["--subdir"]
        _run([sys.executable, "-m", "dvc", "init", "--quiet", *own], directory)
        (directory / ".dvc/config").write_text(DVC_CONFIG)
        _run(["git", "add", ".dvc/config"], directory)


def _git_top(directory: Path) -> Path | None:
    """The root of the git repository that *directory* is in; None where it is in none."""
    command = ["git", "rev-parse", "--show-toplevel"]
    try:
        found = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)  # noqa: S603  fixed
    except FileNotFoundError as error:
        raise StageError(
            "git is not installed, and DVC's experiments are git's commits: install it"
        ) from error
    return Path(found.stdout.strip()).resolve() if found.returncode == 0 else None


def _run(command: Sequence[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)  # noqa: S603  fixed
    if done.returncode:
        raise StageError(f"`{' '.join(command)}` in {directory} ended with {done.returncode}: {done.stderr}")
