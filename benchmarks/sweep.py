"""A sweep of 12 short trainings: its CPU time beside the trainings alone, its time beside `dvc queue`.

Run `python benchmarks/sweep.py`. The project is one of `learner init` with the digits, the MLP and four
epochs. The three contestants run one after another in projects of their own, with one torch thread each:

* the trainings alone: one process that calls the stages build-learner and fit for each point;
* `learner sweep --jobs 2`;
* `dvc exp run --queue` and `dvc queue start --jobs 2`.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
KEY = "build_learner.optimizer.learning_rate"
TRAININGS = """
import sys
from pathlib import Path
from pipeline.engine.stage_run import run_stage
from pipeline.params_edit import apply
for stage in ("create-artifact-dir", "load-data"):
    run_stage(stage)
for rate in sys.argv[1:]:
    apply([f"build_learner.optimizer.learning_rate={rate}"], Path("params.yaml"))
    for stage in ("build-learner", "fit"):
        run_stage(stage)
"""


@dataclass(frozen=True)
class Cost:
    """What a contestant took, in seconds."""

    cpu: float
    wall: float


def create_project(folder: Path) -> None:
    """Create a project by `learner init`, and set it to train the MLP on the digits for four epochs."""
    measure(folder.parent, sys.executable, "-m", "pipeline", "init", folder.name)
    yaml, params = YAML(), folder / "params.yaml"
    content = yaml.load(params)
    content["load_data"]["source"] = {"kind": "digits"}
    content["build_learner"]["model"] = {"kind": "mlp"}
    content["fit"]["num_epochs"] = 4
    yaml.dump(content, params)
    subprocess.run(["git", "commit", "-qam", "Train the MLP on the digits"], cwd=folder, check=True)  # noqa: S607


def measure(folder: Path, *command: str) -> Cost:
    """Run *command* in *folder*, with one thread, and return its cost with its child processes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DVC_NO_ANALYTICS": "true"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def run_queue(folder: Path, rates: str) -> Cost:
    """Run the points with two workers of `dvc queue`, and return the time until the last experiment."""
    began = time.perf_counter()
    measure(folder, "dvc", "exp", "run", "--queue", "-S", f"{KEY}={rates}")
    measure(folder, "dvc", "queue", "start", "--jobs", "2")
    while count_experiments(folder) < len(rates.split(",")):
        time.sleep(0.2)
    return Cost(float("nan"), time.perf_counter() - began)


def count_experiments(folder: Path) -> int:
    """Return the number of finished experiments in *folder*."""
    listed = subprocess.run(
        ["git", "for-each-ref", "--format=%(refname)", "refs/exps"],  # noqa: S607
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return sum(name.count("/") == 4 for name in listed.stdout.split())


def main() -> None:
    """Run the contestants and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--points", type=int, default=12, help="number of points; default 12")
    parser.add_argument("--no-queue", action="store_true", help="leave out `dvc queue`")
    options = parser.parse_args()
    rates = [f"{number / 1000:.3f}" for number in range(1, options.points + 1)]
    with TemporaryDirectory() as temporary:
        folders = [Path(temporary) / name for name in ("trainings", "sweep", "queue")]
        for folder in folders:
            create_project(folder)
        trainings = measure(folders[0], sys.executable, "-c", TRAININGS, *rates)
        print(f"{options.points} trainings alone: {trainings.cpu:.1f} s of CPU time")
        grid = f"{KEY}={','.join(rates)}"
        sweep = measure(folders[1], sys.executable, "-m", "pipeline", "sweep", "-j", "2", "-S", grid)
        print(f"learner sweep: {sweep.cpu:.1f} s of CPU time, {sweep.wall:.1f} s")
        print(f"CPU time, of the trainings alone: {sweep.cpu / trainings.cpu:.2f} (goal: at most 2.5)")
        overhead = (sweep.cpu - trainings.cpu) / options.points
        print(f"CPU time per point beyond its training: {overhead:.2f} s (goal: at most 1.5)")
        if not options.no_queue:
            queue = run_queue(folders[2], ",".join(rates))
            print(f"dvc queue: {queue.wall:.1f} s")
            print(f"time of `dvc queue`, of the sweep: {queue.wall / sweep.wall:.1f} (goal: at least 3)")


if __name__ == "__main__":
    main()
