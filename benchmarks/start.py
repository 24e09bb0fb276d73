"""The processor time of a start, as a multiple of the import of torch.

    python benchmarks/start.py [--rounds 5]

In a project of `learner init` whose run is finished: each stage, `learner run` and `dvc repro` with nothing
to do, and `dvc repro` of five stages that do nothing. The contestants alternate; a row is the smallest of the
rounds.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PYTHON = (sys.executable, "-c", "import torch")
LEARNER = (sys.executable, "-m", "pipeline")
REPRO = (sys.executable, "-m", "dvc", "repro", "--quiet")
STAGES = ("create-artifact-dir", "load-data", "build-learner", "fit", "save-model")
TRIVIAL = "stages:\n" + "".join(
    f"  {name}:\n    cmd: touch {name}\n    deps: [input]\n    outs: [{name}]\n" for name in STAGES
)
"""A `dvc.yaml` whose stages do nothing."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        project, trivial = Path(folder, "project"), Path(folder, "trivial")
        make_projects(project, trivial)
        contestants: dict[str, tuple[Sequence[str], Path]] = {"import torch": (PYTHON, project)}
        contestants |= {f"learner stage {stage}": ((*LEARNER, "stage", stage), project) for stage in STAGES}
        contestants |= {
            "learner run, nothing to do": ((*LEARNER, "run"), project),
            "dvc repro, nothing to do": (REPRO, project),
            "dvc repro of five stages that do nothing": (REPRO, trivial),
        }
        seconds = dict.fromkeys(contestants, float("inf"))
        for _ in range(rounds):
            for name, (command, place) in contestants.items():
                seconds[name] = min(seconds[name], measure(command, place))
    print("| process | CPU s | of the import of torch |\n|---|---:|---:|")
    for name, value in seconds.items():
        print(f"| {name} | {value:.2f} | {value / seconds['import torch']:.2f} |")


def make_projects(project: Path, trivial: Path) -> None:
    """Make a project whose run is finished in *project*, and one with stages that do nothing in *trivial*."""
    run((*LEARNER, "init", str(project)), ROOT)
    run((*LEARNER, "run", "-S", "fit.num_epochs=1"), project)
    trivial.mkdir()
    run(("git", "init", "--quiet"), trivial)
    run((sys.executable, "-m", "dvc", "init", "--quiet"), trivial)
    (trivial / "dvc.yaml").write_text(TRIVIAL, encoding="utf-8")
    (trivial / "input").write_text("", encoding="utf-8")
    run(REPRO, trivial)


def measure(command: Sequence[str], folder: Path) -> float:
    """Return the seconds of processor time of *command* with its children."""
    before = os.times()
    run(command, folder)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def run(command: Sequence[str], folder: Path) -> None:
    """Run *command* in *folder*, and print its output if it fails."""
    options: dict[str, Any] = {"cwd": folder, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "text": True}
    finished = subprocess.run(command, capture_output=True, check=False, **options)  # noqa: S603  this Python
    if finished.returncode:
        raise SystemExit(f"{' '.join(command)}: {finished.stdout}{finished.stderr}")


if __name__ == "__main__":
    main()
