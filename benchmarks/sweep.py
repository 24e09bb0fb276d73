"""A sweep of 12 short trainings: its CPU time beside the trainings alone, its time beside `dvc queue`.

Run `python benchmarks/sweep.py`. The project is one of `learner init` with the digits, the MLP and four
epochs. The three contestants run one after another in projects of their own, with one torch thread each:

* the trainings alone: one process that calls the stages build-learner and fit for each point;
* `learner sweep --jobs 2`;
* `dvc exp run --queue` and `dvc queue start --jobs 2`.

`--stop` compares 40 points of 20 epochs with early stopping with the full grid. `--search` compares 30 trials
of Optuna's sampler tpe with 30 random ones, for three seeds.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
KEY = "build_learner.optimizer.learning_rate"
STOPPED_POINTS = 40
TRIALS = 30
SEARCH_SEEDS = (0, 1, 2)
SPACE = (
    f"{KEY}=tag(log,interval(1e-5,1))",
    "+build_learner.model.dropout=interval(0,0.8)",
    "fit.batch_size=tag(log,int(interval(8,256)))",
)
EXPERIMENT_DEPTH = 4
"""Slashes in the git reference of an experiment: refs/exps/ab/cdef…/name."""
TRAININGS = """
import sys
from pathlib import Path
from pipeline.engine.stage_run import run_stage
from pipeline.project.params_edit import apply
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


def create_project(folder: Path, epochs: int = 4) -> None:
    """Create a project by `learner init`, and set it to train the MLP on the digits for *epochs*."""
    measure(folder.parent, sys.executable, "-m", "pipeline", "init", folder.name)
    yaml, params = YAML(), folder / "params.yaml"
    content = yaml.load(params)
    content["load_data"]["source"] = {"kind": "digits"}
    content["build_learner"]["model"] = {"kind": "mlp"}
    content["fit"]["num_epochs"] = epochs
    yaml.dump(content, params)
    git(folder, "commit", "-qam", "Train the MLP on the digits")


def environment() -> dict[str, str]:
    """Return the environment of the contestants: one thread, and the code of this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    more = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DVC_NO_ANALYTICS": "true", "PATH": path}
    return kept | more


def git(folder: Path, *arguments: str) -> str:
    """Run git in *folder* and return what it prints."""
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)  # noqa: S603, S607
    return done.stdout


def measure(folder: Path, *command: str) -> Cost:
    """Run *command* in *folder*, with one thread, and return its cost with its child processes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(  # noqa: S603
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
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
    names = git(folder, "for-each-ref", "--format=%(refname)", "refs/exps").split()
    return sum(name.count("/") == EXPERIMENT_DEPTH for name in names)


def read_trials(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the epochs and the hash of the dvc.lock of each experiment in *folder*, by its name."""
    found = {}
    for line in git(folder, "for-each-ref", "--format=%(objectname) %(refname)", "refs/exps").splitlines():
        commit, ref = line.split()
        if ref.count("/") == EXPERIMENT_DEPTH:
            params = YAML(typ="safe").load(git(folder, "show", f"{commit}:params.yaml"))
            lock = git(folder, "rev-parse", f"{commit}:dvc.lock").strip()
            found[ref.rpartition("/")[2]] = params["fit"]["num_epochs"], lock
    return found


def kill_sweep(folder: Path, experiments: int, *command: str) -> None:
    """Start the sweep *command* in *folder*, and kill it when there are that many experiments."""
    process = subprocess.Popen(  # noqa: S603
        command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and count_experiments(folder) < experiments:
        time.sleep(0.1)
    process.kill()
    process.wait()


def compare_stopping(folders: Sequence[Path]) -> None:
    """Print what ``--stop asha`` finds with how many epochs, beside the full grid, also if it is killed."""
    rates = ",".join(f"{10 ** (-4 + number / 13):.6f}" for number in range(STOPPED_POINTS))
    command = (sys.executable, "-m", "pipeline", "sweep", "-j", "2", "-S", f"{KEY}={rates}")
    full, stopped, killed = folders
    for folder in folders:
        create_project(folder, epochs=20)
    measure(full, *command)
    measure(stopped, *command, "--stop", "asha")
    for experiments in (STOPPED_POINTS // 4, STOPPED_POINTS // 2):
        kill_sweep(killed, experiments, *command, "--stop", "asha")
    measure(killed, *command, "--stop", "asha")
    best = [find_best(folder) for folder in folders]
    spent = [sum(epochs for epochs, _ in read_trials(folder).values()) for folder in folders]
    print(f"full grid of {STOPPED_POINTS} points: best accuracy {best[0]:.2f} % with {spent[0]} epochs")
    print(
        f"--stop asha: {best[1]:.2f} % with {spent[1]} epochs, {100 * spent[1] / spent[0]:.0f} % (goal: 35 %)"
    )
    print(f"the same trials after two kills: {read_trials(killed) == read_trials(stopped)}")


def compare_samplers(parent: Path) -> None:
    """Print the best and the median loss of the trials of tpe and of random ones, in new projects."""
    print(f"valid/Loss of {TRIALS} trials: the best one, and the median")
    space = [part for each in SPACE for part in ("-S", each)]
    command = (sys.executable, "-m", "pipeline", "sweep", "-j", "2", *space, "--metric", "valid/Loss")
    for seed in SEARCH_SEEDS:
        for sampler in ("tpe", "random"):
            folder = parent / f"{sampler}-{seed}"
            create_project(folder)
            measure(folder, *command, "--search", sampler, "--trials", str(TRIALS), "--seed", str(seed))
            losses = read_bests(folder, "valid/Loss")
            print(f"seed {seed}, {sampler}: {min(losses):.4f}, {statistics.median(losses):.3f}")


def find_best(folder: Path) -> float:
    """Return the best accuracy on the valid split of the experiments in *folder*."""
    return max(read_bests(folder, "valid/Accuracy"))


def read_bests(folder: Path, metric: str) -> list[float]:
    """Return the best value of *metric* of each experiment in *folder*."""
    command = [sys.executable, "-m", "pipeline", "compare", "--json", *read_trials(folder)]
    listed = subprocess.run(  # noqa: S603
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=True
    )
    return [run["metrics"][metric]["best"] for run in json.loads(listed.stdout)["data"]["runs"]]


def main() -> None:
    """Run the contestants and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--points", type=int, default=12, help="number of points; default 12")
    parser.add_argument("--no-queue", action="store_true", help="leave out `dvc queue`")
    parser.add_argument("--stop", action="store_true", help="only compare --stop asha with the full grid")
    parser.add_argument("--search", action="store_true", help="only compare --search tpe with random")
    options = parser.parse_args()
    rates = [f"{number / 1000:.3f}" for number in range(1, options.points + 1)]
    with TemporaryDirectory() as temporary:
        if options.stop:
            compare_stopping([Path(temporary) / name for name in ("full", "stopped", "killed")])
            return
        if options.search:
            compare_samplers(Path(temporary))
            return
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
