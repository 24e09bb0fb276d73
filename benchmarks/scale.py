"""Costs that must not grow with size, each as a ratio or a slope.

    python benchmarks/scale.py [--only load-data]

Each measurement is a generator of rows; add yours to `MEASUREMENTS`. Needs Linux: peaks are read from /proc.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import long_runs
import numpy as np
from many_runs import ROOT, make_points, make_runs

LOAD_DATA = """
import sys
from pathlib import Path
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data
load_data(LoadDataConfig(source={"kind": "npz", "path": sys.argv[1]}), LoadDataPaths(Path(sys.argv[2])))
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""
IMAGE = (3, 64, 64)


@dataclass(frozen=True)
class Row:
    """One measurement and its ratio."""

    size: str
    value: str
    ratio: float
    limit: float


def load_data_peak() -> Iterator[Row]:
    """Yield the peak memory of load-data above that with a tiny archive, as a multiple of the data."""
    with tempfile.TemporaryDirectory() as folder:
        base = load_data_bytes(Path(folder), (100, *IMAGE), np.dtype(np.uint8))
        for shape, dtype in (
            ((10_000, *IMAGE), np.uint8),
            ((20_000, *IMAGE), np.uint8),
            ((5_000, *IMAGE), np.float32),
            ((5_000, *IMAGE), np.float64),
            ((5_000_000, 8), np.float32),
        ):
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize + shape[0] * 8  # targets are int64
            peak = load_data_bytes(Path(folder), shape, np.dtype(dtype)) - base
            yield Row(f"{size / 1e6:.0f} MB of {np.dtype(dtype)}", f"{peak / 1e6:.0f} MB", peak / size, 1.2)


def load_data_bytes(folder: Path, shape: tuple[int, ...], dtype: "np.dtype[np.generic]") -> int:
    """Return the peak memory of a process that runs load-data on random inputs of *shape*."""
    inputs = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8).astype(dtype)
    np.savez(folder / "data.npz", inputs=inputs, targets=np.arange(shape[0]) % 10)
    command = [sys.executable, "-c", LOAD_DATA, str(folder / "data.npz"), str(folder / "prepared")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  this Python
    return int(done.stdout) * 1024


STAGES = """
import json, sys
from pathlib import Path
from stages.params.build_learner_params import BuildLearnerConfig, BuildLearnerPaths
from stages.params.fit_params import FitConfig, FitPaths
from stages.params.save_model_params import SaveModelConfig, SaveModelPaths
root, stage, width = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
learner, data, run, config = root / "learner", root / "data", root / "run", root / "config.json"
plots = run / "plots"
if stage == "prepare":
    from stages.build_learner import build_learner
    from stages.load_data import LoadDataConfig, LoadDataPaths, load_data
    load_data(LoadDataConfig(source={"kind": "digits"}), LoadDataPaths(data))
    model, optimizer = {"kind": "mlp", "hidden_sizes": [width] * 17}, {"kind": "adam", "learning_rate": 1e-3}
    paths = BuildLearnerPaths(dataset=data / "dataset.json", learner=learner)
    build_learner(BuildLearnerConfig(model=model, optimizer=optimizer), paths)
elif stage == "fit":
    from stages.fit import fit
    outputs = [run / name for name in ("checkpoint", "train", "valid", "metrics.json")]
    paths = FitPaths(run, learner, data, *outputs, plots, plots / "steps", plots / "c.tsv", root / "runs")
    options = dict(batch_size=64, device="cpu", metrics=["loss"], num_workers=0, keep={"last": 2})
    fit(FitConfig(num_epochs=2, **options), paths)
else:
    from stages.save_model import save_model
    best = {"metric": "Loss", "split": "train", "direction": "highest"}  # that of the first epoch
    params = SaveModelConfig(epoch=stage, best=best if stage == "best" else None)
    config.write_text(json.dumps({"save_model": params.model_dump(mode="json")}))
    save_model(params, SaveModelPaths(run / "checkpoint", config, run / "model.mpk.gz", run / "exports"))
print("peak", Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


def parameter_peaks() -> Iterator[Row]:
    """Yield the peaks of fit and save-model above those with a tiny model, as multiples of the parameters.

    The model has 25 million parameters in 18 layers, and Adam two moments.
    """
    size = 4 * (64 * 1250 + 16 * 1250**2 + 10 * 1250 + 17 * 1250 + 10)
    with tempfile.TemporaryDirectory() as small, tempfile.TemporaryDirectory() as large:
        for stage, limit in (("prepare", 0.0), ("fit", 5.0), ("last", 1.2), ("best", 1.2)):
            base, peak = (_stage_peak(folder, stage, width) for folder, width in ((small, 8), (large, 1250)))
            if limit:
                name = stage if stage == "fit" else f"save-model, {stage}"
                yield Row(name, f"{(peak - base) / 1e6:.0f} MB", (peak - base) / size, limit)


def _stage_peak(folder: str, stage: str, width: int) -> int:
    """Return the peak memory of a process that runs *stage*, with a model of layers of *width*."""
    command = [sys.executable, "-c", STAGES, folder, stage, str(width)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  this Python
    return int(done.stdout.split()[-1]) * 1024


AUROC = """
import sys, time
import torch
from stages.contracts.history import Split
from stages.contracts.outputs import ClassificationOutput
from stages.learner.metering import Meter
from stages.learner.registered_metric import RegisteredMetric
from stages.metrics import AurocMetric
from stages.renderers import NoRenderer
torch.set_num_threads(1)
classes, steps = int(sys.argv[1]), 192
output = ClassificationOutput(torch.zeros(()), torch.randn(64, classes), torch.randint(0, classes, (64,)))
def measure():
    meter = Meter([(RegisteredMetric(AurocMetric(), numeric=True), [])], NoRenderer(), Split.TRAIN, 1)
    for step in range(steps):
        meter.measure(output, step, 0.0)
    meter.flush()
model = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, classes))
optimizer, inputs = torch.optim.Adam(model.parameters()), torch.randn(64, 784)
def train():
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), output.targets).backward()
        optimizer.step()
for action in (measure, train):
    times = []
    for _ in range(5):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    print(min(times) / steps)
"""
SCORES = """
import time
import torch
from stages.contracts.outputs import ClassificationOutput
from stages.metrics import FBetaScoreMetric, PrecisionMetric, RecallMetric
torch.set_num_threads(1)
kinds, reductions = (PrecisionMetric, RecallMetric), ("macro", "micro")
rules = ({}, {"top_k": 2}, {"threshold": 0.3})
metrics = [kind(reduction=name, **rule) for kind in kinds for name in reductions for rule in rules]
metrics += [FBetaScoreMetric(beta=beta, reduction=name) for beta in range(1, 20) for name in reductions]
tensors, times = (torch.zeros(()), torch.randn(64, 10), torch.randint(0, 10, (64,))), []
for chosen in (metrics[:1], metrics) * 5:
    start = time.process_time()
    for _ in range(100):
        output = ClassificationOutput(*tensors)
        for metric in chosen:
            metric.measure(output)
    times.append((time.process_time() - start) / 100 / len(chosen))
print(min(times[::2]), min(times[1::2]))
"""
RESIDENT = "print(open('/proc/self/status').read().split('VmRSS:')[1].split()[0])"
CONFUSION = """
import sys
from pathlib import Path
import torch
from stages.contracts.outputs import ClassificationOutput
from stages.metrics import ConfusionMatrix
classes, is_counted, total = int(sys.argv[1]), sys.argv[2] == "counted", None
logits = torch.randn(64, classes)
for _ in range(100):
    output = ClassificationOutput(torch.zeros(()), logits, torch.randint(0, classes, (64,)))
    if is_counted:
        total = ConfusionMatrix.from_output(output) + total if total else ConfusionMatrix.from_output(output)
if is_counted:
    total.cells()
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


def auroc_cost() -> Iterator[Row]:
    """Yield the processor time to measure AUROC on a batch of 64, as a share of a training step.

    The model has two linear layers, with 256 units between 784 inputs and the classes.
    """
    for classes in (10, 1000):
        cost, step = _printed(AUROC, str(classes))
        yield Row(f"{classes:,} classes", f"{1000 * cost:.2f} ms", cost / step, 0.5)


def score_cost() -> Iterator[Row]:
    """Yield the processor time of one of 50 scores of a batch of 64, as a share of one that is alone."""
    alone, together = _printed(SCORES)
    yield Row("50 scores", f"{1e6 * together:.0f} us", together / alone, 0.25)


def confusion_peak() -> Iterator[Row]:
    """Yield the peak memory of a process that counts 6,400 samples, as a multiple of one that does not."""
    for classes in (10, 50_000):
        (peak,), (base,) = (_printed(CONFUSION, str(classes), kind) for kind in ("counted", "not counted"))
        yield Row(f"{classes:,} classes", f"{peak / 1024:.0f} MB", peak / base, 1.1)


def _printed(code: str, *arguments: str) -> list[float]:
    """Return the numbers that *code* prints in a process of its own."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  this Python
    return [float(line) for line in done.stdout.split()]


def costs_of(kind: str) -> Iterator[Row]:
    """Yield the costs of epochs or steps of long runs against early ones, or those of publishing logs."""
    if kind == "epochs":
        sizes = [100, 1_000, 5_000]
        costs = long_runs.epoch_costs(sizes)
        for size, cost in zip(sizes, costs, strict=True):
            yield Row(f"epoch {size:,}", f"{cost * 1e3:.1f} ms", cost / costs[0], 1.2)
    elif kind == "steps":
        costs = long_runs.step_costs(1_000_000)
        for name, cost in (("first tenth", costs[0]), ("last tenth", costs[-1])):
            yield Row(f"{name} of 10^6", f"{cost * 1e6:.0f} us", cost / costs[0], 1.2)
    else:
        for files in (100, 4_000):
            calls, seconds, again = long_runs.publishing_cost(files)
            yield Row(f"{files:,} log files", f"{seconds / files * 1e6:.0f} us", calls / files, 0.1)
        yield Row("the same again", f"{again / files * 1e6:.0f} us", again / seconds, 0.5)


def compare_seconds() -> Iterator[Row]:
    """Yield the CPU time of `learner compare` per run, of each further run, and of 1,000 runs to 6 s."""
    seconds = {count: min(timed_compare(count)) for count in (10, 100, 1000)}
    for count, total in seconds.items():
        per_run = total / count
        yield Row(f"{count} runs", f"{1000 * per_run:.1f} ms/run", per_run / (seconds[10] / 10), 1.0)
    slopes = [(seconds[b] - seconds[a]) / (b - a) for a, b in ((10, 100), (100, 1000))]
    yield Row("run 101 to 1,000", f"{1000 * slopes[1]:.1f} ms/run", slopes[1] / slopes[0], 1.5)
    yield Row("1,000 runs of 6 s", f"{seconds[1000]:.1f} s", seconds[1000] / 6, 1.0)


def timed_compare(count: int, rounds: int = 3) -> Iterator[float]:
    """Yield the CPU time of `learner compare` for *count* experiments; a busy machine changes it little."""
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder), count, epochs=20, batches=45)
        for _ in range(rounds):
            yield timed(folder, "compare")


def timed(folder: str, *arguments: str) -> float:
    """Return the CPU time of ``learner`` in *folder*, with the processes of git that it starts."""
    start = os.times()
    learner(folder, *arguments)
    end = os.times()
    return end.children_user + end.children_system - start.children_user - start.children_system


def plan_seconds() -> Iterator[Row]:
    """Yield the CPU time of `learner sweep --dry-run` for each further point that is finished, to 10 ms."""
    seconds = []
    for count in (10, 310):
        with tempfile.TemporaryDirectory() as folder:
            points = make_points(Path(folder), count)
            seconds.append(min(timed(folder, "sweep", "--dry-run", "-S", points) for _ in range(3)))
    per_point = (seconds[1] - seconds[0]) / 300
    yield Row("300 points", f"{1000 * per_point:.1f} ms", 100 * per_point, 1.0)


def serve_memory() -> Iterator[Row]:
    """Yield the memory of a process with the modules of `learner serve`, as a multiple of Prefect's."""
    code = "import prefect.runner, prefect.deployments.runner\n{}\n" + RESIDENT
    (base,), (memory,) = (_printed(code.format(more)) for more in ("", "import pipeline.flows.serving"))
    yield Row("imported", f"{memory / 1024:.0f} MB", memory / base, 2.0)


def page_bytes() -> Iterator[Row]:
    """Yield the kB that each run of 1,000 epochs adds to the page of `learner compare --html`."""
    sizes = []
    for count in (2, 6):
        with tempfile.TemporaryDirectory() as folder:
            make_runs(Path(folder), count, epochs=1000, batches=45)
            learner(folder, "compare", "--html", "page.html")
            sizes.append((Path(folder) / "page.html").stat().st_size)
    each = (sizes[1] - sizes[0]) / 4 / 1000
    yield Row("1,000 epochs", f"{each:.1f} kB/run", each / 30, 1.0)


def learner(folder: str, *arguments: str) -> None:
    """Run ``learner`` in *folder*, with the code beside this file."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pipeline", *arguments]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)  # noqa: S603  this Python


MEASUREMENTS: dict[str, Callable[[], Iterator[Row]]] = {
    "load-data": load_data_peak,
    "memory": parameter_peaks,
    "auroc": auroc_cost,
    "scores": score_cost,
    "confusion": confusion_peak,
    "epochs": partial(costs_of, "epochs"),
    "steps": partial(costs_of, "steps"),
    "publish": partial(costs_of, "publish"),
    "compare": compare_seconds,
    "plan": plan_seconds,
    "serve": serve_memory,
    "page": page_bytes,
}


def main() -> None:
    """Print a table of all measurements."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=MEASUREMENTS, help="one measurement")
    options = parser.parse_args()
    print(f"{'measurement':<12} {'size':<20} {'value':>10} {'ratio':>7} {'limit':>7}")
    for name, measure in MEASUREMENTS.items():
        if options.only in {None, name}:
            for row in measure():
                print(f"{name:<12} {row.size:<20} {row.value:>10} {row.ratio:>7.2f} {row.limit:>7.2f}")


if __name__ == "__main__":
    main()
