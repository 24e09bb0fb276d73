"""The installed package, its five stages with their versions, and versions.yaml, which lists these.

In a project without the files of the stages, DVC cannot read the VERSION of ``stages/fit.py``. It reads
versions.yaml instead, which is written from the installed package. After an upgrade, `learner versions`
updates it, and DVC reruns the stages whose VERSION changed; until then those stages fail.
"""

import hashlib
from collections.abc import Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from pipeline.project.snapshot import Snapshot, list_tracked_params
from pipeline.project.yaml_files import read_definition, read_yaml, stages_of
from stages import build_learner, create_artifact_dir, fit, load_data, save_model
from stages.contracts.errors import ParamsError, StageError, closest
from stages.system.files import write_text

VERSIONS = {
    "create-artifact-dir": create_artifact_dir.VERSION,
    "load-data": load_data.VERSION,
    "build-learner": build_learner.VERSION,
    "fit": fit.VERSION,
    "save-model": save_model.VERSION,
}
"""The stages by name, in the order in which they run."""
PATH = Path("versions.yaml")
HEAD = "# Which stages of learner-pipeline are installed. `learner versions` writes it; DVC reads it.\n"
PREFIX = f"{PATH}: "
CODE = {"models": "models/**/*.py", "sources": "data/sources/**/*.py"}
"""Shipped code that is a dependency by content; a checkout of this project has it in ``deps``."""


def find_this_package(name: str = "learner-pipeline") -> Distribution:
    """Return the installed distribution *name*, rather than the metadata in a checkout of it.

    Raises `StageError` if it is not installed.
    """
    installed = list(distributions(name=name))
    if not installed:
        raise StageError(
            f"{name} runs from a folder in which it is not installed. Install it with `pip install`"
        )
    return next((candidate for candidate in installed if candidate.read_text("RECORD")), installed[0])


def version_of(name: str) -> str:
    """Return the version of stage *name*; raise `ParamsError` if there is no such stage."""
    if name not in VERSIONS:
        raise ParamsError(
            f"there is no stage {name!r}. Use one of {', '.join(VERSIONS)}.{closest(name, VERSIONS)}"
        )
    return VERSIONS[name]


def read_installed_versions() -> dict[str, str]:
    """Return the version of each installed stage, and a hash of each entry of `CODE`."""
    versions = {name.replace("-", "_"): version for name, version in VERSIONS.items()}
    return versions | {name: _digest(pattern) for name, pattern in CODE.items()}


def text() -> str:
    """Return the content of versions.yaml for the installed stages."""
    return HEAD + "".join(f'{name}: "{version}"\n' for name, version in read_installed_versions().items())


def is_used() -> bool:
    """Return whether a stage in dvc.yaml has parameters in versions.yaml."""
    stages = stages_of(read_definition()).values()
    return any(file == str(PATH) for stage in stages for file, _ in list_tracked_params(stage))


def find_stale_versions() -> list[str]:
    """Return a line for each entry of versions.yaml that differs from the installed stages."""
    if not is_used():
        return []
    return [
        f"{describe_difference(name, written)}. Run `learner versions`, and then `dvc repro`, which runs the "
        "stages that depend on it"
        for name, written in _read_stale().items()
    ]


def describe_difference(name: str, written: str | None) -> str:
    """Return a line about the entry *name*, which is *written* in versions.yaml or missing."""
    return f"{PATH}: {name} is {written or 'missing'}, but {read_installed_versions()[name]} is installed"


def _read_stale() -> dict[str, str | None]:
    """Return the value of each entry of versions.yaml that is out of date; None if it is missing."""
    written = read_yaml(PATH) if PATH.exists() else {}
    installed = read_installed_versions()
    return {name: written.get(name) for name, version in installed.items() if written.get(name) != version}


def update_versions() -> dict[str, str | None]:
    """Rewrite versions.yaml if it is out of date, and return the previous value of each changed entry.

    Raises `ParamsError` if dvc.yaml does not use it.
    """
    if not is_used():
        raise ParamsError(
            f"no stage in dvc.yaml has params in {PATH}, so DVC reads the stages themselves. Run `dvc repro`"
        )
    stale = _read_stale()
    if stale:
        write_text(PATH, text())
    return stale


def check_versions(before: Snapshot) -> None:
    """Raise `StageError` if a version in the snapshot *before* of a stage is not the installed one.

    DVC would otherwise record the outputs with another version.
    """
    now = read_installed_versions()
    for key, written in before.params.items():
        name = key.removeprefix(PREFIX)
        if key.startswith(PREFIX) and written != now.get(name, written):
            raise StageError(
                f"{PATH}: {name} is {written}, but {now[name]} is installed. Run `learner versions`, and "
                "then the same command again"
            )


def read_code_hashes(params: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the *params* of a stage that are hashes of code, by name: they are part of the key of a run."""
    return {key: str(params[key]) for key in (f"{PREFIX}{name}" for name in CODE) if key in params}


def _digest(pattern: str) -> str:
    root = Path(fit.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.glob(pattern)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]
