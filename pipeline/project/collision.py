"""Packages and modules of a user's project that have the name of one of this project's packages.

Python imports only one package of a name, so the other one is hidden. This module imports nothing from
`stages`, which a user's package may hide.
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

NAMES = ("pipeline", "stages")
ROOT = Path(__file__).resolve().parents[2]
"""Folder from which this project's packages are imported."""
PROJECT_FILES = ("params.yaml", "dvc.yaml")


def find_collision(folder: Path) -> str | None:
    """Return a message about the packages and modules in *folder* that have the name of one of ours, or None.

    A folder with Python files counts as a package with or without ``__init__.py``. A checkout of this project
    has no collision, because its packages are ours.
    """
    folder = folder.resolve()
    if (folder / "pipeline/cli.py").is_file() and (folder / "stages/contracts/errors.py").is_file():
        return None
    paths = [path for name in NAMES for path in _packages(folder, name)]
    return _describe(paths) if paths else None


def find_collision_in_project(folder: Path) -> str | None:
    """Return the collision in the project *folder*; None if it has neither a params.yaml nor a dvc.yaml."""
    is_project = any((folder / name).is_file() for name in PROJECT_FILES)
    return find_collision(folder) if is_project else None


def find_hidden_stages() -> str | None:
    """Return a message about what ``import stages`` finds; None if it is ours, or another copy of ours."""
    spec = find_spec("stages")
    if spec is None or (spec.origin and Path(spec.origin).with_name("contracts").is_dir()):
        return None
    return _describe([Path(path) for path in spec.submodule_search_locations or [spec.origin or spec.name]])


def _describe(paths: Sequence[Path]) -> str:
    """Return a message about *paths*, which hide packages of this project, or which those hide."""
    return (
        f"{' and '.join(map(str, paths))}: learner-pipeline has a package of this name, and Python imports "
        f"only one package of a name. Rename your own, for example to my_{paths[0].stem}, and change the "
        "imports, the import paths in params.yaml and the deps in dvc.yaml that name it"
    )


def _packages(folder: Path, name: str) -> Iterator[Path]:
    package, module = folder / name, folder / f"{name}.py"
    if any(True for pattern in ("*.py", "*/*.py") for _ in package.glob(pattern)):
        yield package
    if module.is_file():
        yield module
