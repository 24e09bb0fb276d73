"""versions.yaml: which stages are installed, for a project that does not have their files.

There DVC cannot read the VERSION of ``stages/fit.py``; it reads this file instead, which is written from what
is installed. A raised VERSION reruns that stage there too, once this file says so; until then the stage says
that it does not.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.snapshot import Snapshot
from pipeline.yaml_files import read_yaml
from stages import build_learner, create_artifact_dir, fit, load_data, save_model
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.files import write_text

PATH = Path("versions.yaml")
HEAD = "# Which stages of learner-pipeline are installed. `learner versions` writes it; DVC reads it.\n"
PREFIX = f"{PATH}: "
STAGES = (create_artifact_dir, load_data, build_learner, fit, save_model)
CODE = {"models": "models/**/*.py", "sources": "data/sources.py"}
"""What a user of this project itself has in ``deps``: shipped parts that are told apart by their content."""


def installed() -> dict[str, str]:
    """The version of each stage as it is installed, and a hash of each part in `CODE`."""
    versions = {stage.__name__.rpartition(".")[2]: stage.VERSION for stage in STAGES}
    return versions | {name: _digest(pattern) for name, pattern in CODE.items()}


def text() -> str:
    """What versions.yaml must say now."""
    return HEAD + "".join(f'{name}: "{version}"\n' for name, version in installed().items())


def is_used(root: Path = Path()) -> bool:
    """Whether a stage in *root*'s dvc.yaml has parameters in versions.yaml."""
    stages = (read_yaml(root / "dvc.yaml").get("stages") or {}).values()
    entries = [entry for stage in stages for entry in stage.get("params") or []]
    return any(isinstance(entry, Mapping) and str(PATH) in entry for entry in entries)


def stale(root: Path = Path()) -> list[str]:
    """A line for each entry of *root*'s versions.yaml, where it is used, that is not what is installed."""
    if not is_used(root):
        return []
    path = root / PATH
    written = read_yaml(path) if path.exists() else {}
    return [
        f"{PATH}: {name} is {written.get(name, 'missing')}, and installed is {version}: `learner versions` "
        "writes it anew, and `dvc repro` runs what depends on it"
        for name, version in installed().items()
        if written.get(name) != version
    ]


def refresh(root: Path = Path()) -> list[str]:
    """Write *root*'s versions.yaml anew where it is `stale`, and say what was; nothing where it was not.

    Raises `ParamsError` where dvc.yaml has no use for it.
    """
    if not is_used(root):
        raise ParamsError(f"no stage in dvc.yaml has params in {PATH}: DVC reads the stages' own files here")
    lines = stale(root)
    if lines:
        write_text(root / PATH, text())
    return [line.partition(": `")[0] for line in lines]


def check_written(before: Snapshot) -> None:
    """Raise `StageError` where versions.yaml does not say what is installed of the stage *before* is of.

    What it makes would else be recorded as made by another version.
    """
    now = installed()
    for key, written in before.params.items():
        name = key.removeprefix(PREFIX)
        if key.startswith(PREFIX) and written != now.get(name, written):
            raise StageError(
                f"{PATH} says that {name} is {written}, and installed is {now[name]}: `learner versions` "
                "writes it anew, and the same command runs what depends on it"
            )


def shipped_code(params: Mapping[str, Any]) -> dict[str, str | None]:
    """Of the *params* of a stage those that are a hash of code, by their names: a run depends on them."""
    return {key: str(params[key]) for key in (f"{PREFIX}{name}" for name in CODE) if key in params}


def _digest(pattern: str) -> str:
    root = Path(fit.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.glob(pattern)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]
