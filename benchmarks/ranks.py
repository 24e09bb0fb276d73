"""What several ranks on a CPU are worth, beside one rank and a textbook loop with DistributedDataParallel.

    python benchmarks/ranks.py [--rounds 5] [--batches 200]

Each measurement starts its ranks with torch's elastic launcher, one thread each, and times one epoch after
another one. Printed are the medians of the ratios of the rounds. It needs as many idle cores as ranks.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import distributed

from stages import data
from stages.contracts.events import Progress
from stages.contracts.history import History
from stages.contracts.shares import share_of
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import Cnn, Mlp
from stages.optim import Adam
from stages.renderers import NoRenderer

CLASSES, SHAPE, BATCH_SIZE = 10, (1, 28, 28), 64
MEAN, STD = 33.0, 78.0
MODELS = {"CNN": Cnn, "MLP": Mlp}
EPOCHS = 2
MIN_SCALING = 1.7
MIN_OF_DDP = 0.97


class Clock(NoRenderer):
    """Notes the time at the end of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def epoch_end(self, progress: Progress, history: History) -> None:  # noqa: ARG002  a renderer's
        """Note the time."""
        self.times.append(time.perf_counter())


def make_samples(batches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images of uint8 and their classes."""
    torch.manual_seed(1)
    count = batches * BATCH_SIZE
    return torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8), torch.randint(CLASSES, (count,))


def time_learner(model: Any, batches: int) -> float:
    """Return the seconds of the last epoch of the Learner on the ranks of torchrun."""
    images, labels = make_samples(batches)
    builder = data.DataLoaderBuilder(data.NormalizeBatcher(MEAN, STD)).batch_size(BATCH_SIZE)
    train = builder.shuffle(1).build(data.TensorDataset(images, labels))
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        learner = LearnerBuilder(folder).metrics(LossMetric(), AccuracyMetric()).devices(["cpu"])
        learner = learner.num_epochs(EPOCHS).seed(1).num_threads(1).renderer(clock)
        learner.build(model, Adam(), 1e-3).fit(train)
    return clock.times[-1] - clock.times[-2] if clock.times else 0.0


def time_ddp(model: Any, batches: int) -> float:
    """Return the seconds of the last epoch of a textbook loop with DistributedDataParallel."""
    torch.set_num_threads(1)
    images, labels = make_samples(batches)
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    for _ in range(EPOCHS):
        losses, hits, start = 0.0, 0.0, time.perf_counter()
        for batch in torch.randperm(len(images), generator=torch.Generator().manual_seed(1)).split(
            BATCH_SIZE
        ):
            own = batch[share_of(len(batch), rank, size)]
            targets = labels[own]
            logits = wrapped(images[own].float().sub_(MEAN).div_(STD))
            loss = F.cross_entropy(logits, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses += loss.item()
            hits += (logits.argmax(1) == targets).sum().item()
    return time.perf_counter() - start


LOOPS = {"learner": time_learner, "ddp": time_ddp}


def run_rank(loop: str, name: str, batches: int) -> None:
    """Run *loop* on this rank, and print its seconds on rank 0."""
    torch.manual_seed(1)
    seconds = LOOPS[loop](MODELS[name](SHAPE, CLASSES), batches)
    if os.environ["RANK"] == "0":
        sys.stdout.write(f"seconds {seconds}\n")
    if distributed.is_initialized():
        distributed.destroy_process_group()


def measure(loop: str, name: str, ranks: int, batches: int) -> float:
    """Return the seconds of *loop* on *ranks* ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    program = [str(Path(__file__).absolute()), "--batches", str(batches), "--rank-of", loop, name]
    command = [*launcher, *program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("seconds ")]
    if done.returncode or not found:
        raise SystemExit(f"{loop} on {ranks} ranks failed:\n{done.stderr}")
    return float(found[0])


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="the number of rounds. Default: 5")
    parser.add_argument("--batches", type=int, default=200, help="batches of an epoch. Default: 200")
    parser.add_argument("--rank-of", nargs=2, metavar=("LOOP", "MODEL"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank_of:
        run_rank(*asked.rank_of, asked.batches)
        return
    sys.stdout.write(f"{'':5}{'2 ranks / 1 rank':>18}{'2 ranks / DDP':>15}\n")
    for name in MODELS:
        cases = ("learner", name, 1), ("learner", name, 2), ("ddp", name, 2)
        rounds = [[measure(*case, asked.batches) for case in cases] for _ in range(asked.rounds)]
        scaling = statistics.median(one / two for one, two, _ in rounds)
        of_ddp = statistics.median(ddp / two for _, two, ddp in rounds)
        sys.stdout.write(f"{name:5}{scaling:18.2f}{of_ddp:15.2f}\n")
    sys.stdout.write(f"goals: {MIN_SCALING} for the CNN, and {MIN_OF_DDP}\n")


if __name__ == "__main__":
    main()
