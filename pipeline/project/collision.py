"""Packages and modules of a user's project that have the name of one of this project's packages.

Python imports only one package of a name, so the other one is hidden. This module imports nothing from
`stages`, which a user's package may hide.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

NAMES = ("pipeline", "stages")
ROOT = Path(__file__).resolve().parents[2]
"""Folder from which this project's packages are imported."""
PROJECT_FILES = ("params.yaml", "dvc.yaml")


@dataclass(frozen=True)
class Collision:
    """Files or folders that hide packages of this project, or that those hide."""

    paths: tuple[Path, ...]

    @property
    def problem(self) -> str:
        """Return a message with the paths."""
        return (
            f"{' and '.join(map(str, self.paths))}: learner-pipeline has a package of this name, and Python "
            "imports only one package of a name"
        )

    @property
    def remedy(self) -> str:
        """Return the remedy for the user."""
        return (
            f"rename your own, for example to my_{self.paths[0].stem}, and change the imports, the import "
            "paths in params.yaml and the deps in dvc.yaml that name it"
        )

    def __str__(self) -> str:
        return f"{self.problem}. {self.remedy.capitalize()}"


def find_collision(folder: Path) -> Collision | None:
    """Return the packages and modules in *folder* that have the name of one of ours, or None.

    A folder with Python files counts as a package with or without ``__init__.py``. A checkout of this project
    has no collision, because its packages are ours.
    """
    folder = folder.resolve()
    if (folder / "pipeline/cli.py").is_file() and (folder / "stages/contracts/errors.py").is_file():
        return None
    paths = tuple(path for name in NAMES for path in _packages(folder, name))
    return Collision(paths) if paths else None


def find_collision_in_project(folder: Path) -> Collision | None:
    """Return the collision in the project *folder*; None if it has neither a params.yaml nor a dvc.yaml."""
    is_project = any((folder / name).is_file() for name in PROJECT_FILES)
    return find_collision(folder) if is_project else None


def find_hidden_stages() -> Collision | None:
    """Return the package that ``import stages`` finds; None if it is ours, or another copy of ours."""
    spec = find_spec("stages")
    if spec is None or (spec.origin and Path(spec.origin).with_name("contracts").is_dir()):
        return None
    return Collision(tuple(map(Path, spec.submodule_search_locations or [spec.origin or spec.name])))


def _packages(folder: Path, name: str) -> Iterator[Path]:
    package, module = folder / name, folder / f"{name}.py"
    if any(True for pattern in ("*.py", "*/*.py") for _ in package.glob(pattern)):
        yield package
    if module.is_file():
        yield module
