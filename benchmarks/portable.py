"""What a portable run costs: the time of training steps with and without `portable`, in processes in turn.

    python benchmarks/portable.py [--rounds 5] [--steps 150]

A process chooses its kernels once, so each measurement has a process of its own. Printed are the medians of
the ratios of the rounds.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
from torch import nn

from stages.devices import prepare_portable
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import Cnn, Mlp
from stages.optim import Adam
from stages.renderers import NoRenderer

CLASSES = 10
MODELS = {
    "CNN, digits of 8x8": (Cnn, (1, 8, 8), 32),
    "CNN, images of 28x28": (Cnn, (1, 28, 28), 64),
    "MLP, images of 28x28": (Mlp, (1, 28, 28), 64),
}


def measure(name: str, steps: int, *, portable: bool) -> float:
    """Return the processor time of *steps* batches, after a warm-up; run it in a process of its own."""
    if portable:
        prepare_portable()
    torch.manual_seed(1)
    build, shape, size = MODELS[name]
    batches = [(torch.rand(size, *shape), torch.randint(CLASSES, (size,))) for _ in range(steps)]
    times = [
        train(build(shape, CLASSES), batches[:count], portable=portable) for count in (steps // 5, steps)
    ]
    return times[-1]


def train(model: nn.Module, batches: list[Any], *, portable: bool) -> float:
    """Train *model* on *batches*, and return the processor time in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        builder = LearnerBuilder(folder).metrics(LossMetric(), AccuracyMetric()).renderer(NoRenderer())
        builder = builder.num_threads(1).portable() if portable else builder.num_threads(1)
        learner = builder.build(model, Adam(), 1e-3)
        start = time.process_time()
        learner.fit(batches)
        return time.process_time() - start


def run(name: str, steps: int, *, portable: bool) -> float:
    """Return `measure` of a new process."""
    command = [sys.executable, __file__, "--steps", str(steps), "--measure", name]
    done = subprocess.run(  # noqa: S603  this program
        [*command, *(["--portable"] if portable else [])], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--portable", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(measure(asked.measure, asked.steps, portable=asked.portable))
        return
    print(f"{torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}")
    for name in MODELS:
        ratios = []
        for _ in range(asked.rounds):
            usual = run(name, asked.steps, portable=False)
            ratios.append(run(name, asked.steps, portable=True) / usual)
        print(f"{name}: {statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
