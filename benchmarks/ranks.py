"""What several ranks on a CPU are worth, beside one rank and a textbook loop with DistributedDataParallel.

    python benchmarks/ranks.py [--rounds 5] [--batches 200] [--batch-size 64]

Each measurement starts its ranks with torch's elastic launcher, one thread each, and times one epoch after
another one. Printed are the medians of the ratios of the rounds. `no exchange` is the ratio for two processes
that train at the same time with half the batch each, and do not exchange gradients: the most that this
machine permits. `overlapped` is the time on one rank, of the processor time on two: the most that an exchange
during the backward pass could reach on as many cores. The last line is the processor time and the waits of
rank 0 for the agreement of the ranks on stops and saves. It needs as many idle cores as ranks.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import distributed

from stages import data
from stages.contracts.events import Progress
from stages.contracts.history import History
from stages.contracts.placement import share_of
from stages.distributed import join_group
from stages.distributed.rank_group import Agreement
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import Cnn, Mlp
from stages.optim import Adam
from stages.renderers import NoRenderer

CLASSES, SHAPE = 10, (1, 28, 28)
MEAN, STD = 33.0, 78.0
MODELS = {"CNN": Cnn, "MLP": Mlp}
EPOCHS = 2
STEP_SECONDS = 0.005
MIN_SCALING = 1.7
MIN_OF_DDP = 0.97
MAX_AGREEMENT = 0.01


class Clock(NoRenderer):
    """Notes the value of a clock at the end of each epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self.times: list[float] = []

    def epoch_end(self, progress: Progress, history: History) -> None:  # noqa: ARG002  a renderer's
        """Note the value."""
        self.times.append(self._clock())


def make_samples(batches: int, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images of uint8 and their classes."""
    torch.manual_seed(1)
    count = batches * batch_size
    return torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8), torch.randint(CLASSES, (count,))


def time_learner(
    model: Any,
    batches: int,
    batch_size: int,
    read_clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the seconds of the last epoch of the Learner on the ranks of torchrun, by the clock."""
    images, labels = make_samples(batches, batch_size)
    builder = data.DataLoaderBuilder(data.NormalizeBatcher(MEAN, STD)).batch_size(batch_size)
    train = builder.shuffle(1).build(data.TensorDataset(images, labels))
    clock = Clock(read_clock)
    with tempfile.TemporaryDirectory() as folder:
        learner = LearnerBuilder(folder).metrics(LossMetric(), AccuracyMetric()).devices(["cpu"])
        learner = learner.num_epochs(EPOCHS).seed(1).num_threads(1).renderer(clock)
        learner.build(model, Adam(), 1e-3).fit(train)
    return clock.times[-1] - clock.times[-2] if clock.times else 0.0


def time_ddp(model: Any, batches: int, batch_size: int) -> float:
    """Return the seconds of the last epoch of a textbook loop with DistributedDataParallel."""
    torch.set_num_threads(1)
    images, labels = make_samples(batches, batch_size)
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    for _ in range(EPOCHS):
        losses, hits, start = 0.0, 0.0, time.perf_counter()
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
        for batch in order.split(batch_size):
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


def time_processor(model: Any, batches: int, batch_size: int) -> float:
    """Return the processor time of this rank in that epoch."""
    return time_learner(model, batches, batch_size, time.process_time)


def time_half_batches(model: Any, batches: int, batch_size: int) -> float:
    """Return the seconds of the last epoch of one of two Learners that have half the batch each."""
    distributed.init_process_group("gloo")
    distributed.barrier()
    distributed.destroy_process_group()
    del os.environ["RANK"]  # as if no launcher had started this process
    return time_learner(model, batches, batch_size // 2)


def time_agreement(model: Any, batches: int, batch_size: int) -> float:  # noqa: ARG001  a loop's
    """Return the share of the time that the agreement takes from steps of `STEP_SECONDS`.

    It is the time in `Agreement.poll` and the processor time of the other threads of this process, less what
    both are without an agreement: the threads of torch's process group are never idle.
    """
    torch.set_num_threads(1)
    group = join_group()
    without = time_steps(lambda: None, 5 * batches)
    agreement = Agreement(group)
    polling = time_steps(lambda: agreement.poll(stop=False, save=False), 5 * batches)
    agreement.close()
    return polling - without


def time_steps(poll: Callable[[], object], steps: int) -> float:
    """Return the time in *poll* and of other threads, as a share of the time of steps of `STEP_SECONDS`."""
    polling, start = 0.0, time.perf_counter()
    others = time.process_time() - time.thread_time()
    for _ in range(steps):
        step_end = time.perf_counter() + STEP_SECONDS
        while time.perf_counter() < step_end:
            pass
        before = time.perf_counter()
        poll()
        polling += time.perf_counter() - before
    others = time.process_time() - time.thread_time() - others
    return (polling + others) / (time.perf_counter() - start)


LOOPS = {
    "learner": time_learner,
    "processor": time_processor,
    "half": time_half_batches,
    "ddp": time_ddp,
    "agreement": time_agreement,
}


def run_rank(loop: str, name: str, batches: int, batch_size: int) -> None:
    """Run *loop* on this rank, and print what it returns on rank 0."""
    torch.manual_seed(1)
    rank = os.environ["RANK"]
    measured = LOOPS[loop](MODELS[name](SHAPE, CLASSES), batches, batch_size)
    if rank == "0":
        sys.stdout.write(f"measured {measured}\n")
    if distributed.is_initialized():
        distributed.destroy_process_group()


def measure(loop: str, name: str, ranks: int, sizes: tuple[int, int]) -> float:
    """Return what *loop* measures on rank 0; *sizes* are the batches and the samples of one."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    batches, batch_size = map(str, sizes)
    program = [str(Path(__file__).absolute()), "--batches", batches, "--batch-size", batch_size]
    command = [*launcher, *program, "--rank-of", loop, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("measured ")]
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
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a batch. Default: 64")
    parser.add_argument("--rank-of", nargs=2, metavar=("LOOP", "MODEL"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank_of:
        run_rank(*asked.rank_of, asked.batches, asked.batch_size)
        return
    sizes = asked.batches, asked.batch_size
    heads = ("2 ranks / 1 rank", "no exchange", "overlapped", "2 ranks / DDP")
    sys.stdout.write(f"{'':5}{''.join(f'{head:>18}' for head in heads)}\n")
    for name in MODELS:
        cases = [("learner", name, 1), *((loop, name, 2) for loop in ("learner", "half", "processor", "ddp"))]
        rounds = [[measure(*case, sizes) for case in cases] for _ in range(asked.rounds)]
        found = [(one / two, one / half, one / cpu, ddp / two) for one, two, half, cpu, ddp in rounds]
        ratios = [statistics.median(each) for each in zip(*found, strict=True)]
        sys.stdout.write(f"{name:5}{''.join(f'{ratio:18.2f}' for ratio in ratios)}\n")
    share = statistics.median(measure("agreement", "MLP", 2, sizes) for _ in range(asked.rounds))
    sys.stdout.write(f"agreement: {share:.2%} of steps of {STEP_SECONDS * 1000:.0f} ms\n")
    sys.stdout.write(f"goals: {MIN_SCALING} for the CNN, {MIN_OF_DDP}, and {MAX_AGREEMENT:.0%}\n")


if __name__ == "__main__":
    main()
