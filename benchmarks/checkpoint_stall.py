"""What a checkpoint costs the training thread: the stall of a save, and the speed while it is written.

    python benchmarks/checkpoint_stall.py [--steps 120] [--every 30] [--threads 1] [--directory /dev/shm]

A model of 26 million parameters with Adam, 315 MB of state, trains with a checkpoint within the epoch every
30 steps. The stall is the time from the step before a save to the next one, beyond the median of a step in
which nothing is written. It is printed as a multiple of the time of a copy of the state in memory, and of
`torch.save` for the same state in the same directory, both measured at the same moment of the run; the first
save has its own line. The processor time of the stall leaves out what other processes take, and the wait
for a previous checkpoint that is still being written. Memory is the difference between the peaks of
processes with and without checkpoints, medians of three.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stages.contracts.events import Progress
from stages.learner import LearnerBuilder
from stages.metrics import LossMetric
from stages.models import ClassificationStep
from stages.optim import Adam
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer
from stages.system.files import open_atomic

MB = 1e6
BATCH_SIZE, INPUTS, CLASSES = 64, 784, 10
WIDTHS = (4096, 4096, 1500)
WRITER = "checkpoint-writer"


class Net(ClassificationStep, nn.Sequential):
    """A multilayer perceptron."""


@dataclass
class Stopwatch(NoRenderer):
    """The start of every step, and whether a checkpoint was being written."""

    times: list[float] = field(default_factory=list)
    cpu_times: list[float] = field(default_factory=list)
    """Those of the training thread."""
    writing: list[bool] = field(default_factory=list)

    def step(self, progress: Progress) -> None:  # noqa: ARG002  the protocol's
        """Note the time of a step."""
        self.writing.append(any(thread.name == WRITER for thread in threading.enumerate()))
        self.cpu_times.append(time.thread_time())
        self.times.append(time.perf_counter())


def build_net() -> Net:
    """Return the model."""
    torch.manual_seed(1)
    widths = (INPUTS, *WIDTHS)
    layers = [
        each
        for before, after in zip(widths, WIDTHS, strict=False)
        for each in (nn.Linear(before, after), nn.ReLU())
    ]
    return Net(*layers, nn.Linear(WIDTHS[-1], CLASSES))


def train(directory: Path, steps: int, every: int | None, threads: int) -> Stopwatch:
    """Train for one epoch of *steps*, and return the times of the steps."""
    torch.set_num_threads(threads)
    batch = torch.randn(BATCH_SIZE, INPUTS), torch.randint(CLASSES, (BATCH_SIZE,))
    watch, optimizer = Stopwatch(), Adam()
    builder = LearnerBuilder(directory).metrics(LossMetric()).devices(["cpu"]).renderer(watch)
    if every is not None:
        builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint_every(steps=every)
    learner = builder.build(build_net(), optimizer, 1e-3)
    learner.fit([batch] * steps, [batch])
    return watch


def build_state() -> list[Tensor]:
    """Return tensors like the weights and the two moments."""
    weights = [each.detach() for each in build_net().parameters()]
    return [*weights, *(torch.randn_like(each) * 1e-3 for each in weights * 2)]


def seconds(action: Any, *arguments: Any) -> float:
    """Return how long *action* takes."""
    begin = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - begin


def copy_seconds(state: list[Tensor]) -> float:
    """Return the median time of a copy of *state* into memory that is in use."""
    buffers = [each.clone() for each in state]

    def copy() -> None:
        for buffer, each in zip(buffers, state, strict=True):
            buffer.copy_(each)

    return statistics.median(seconds(copy) for _ in range(5))


def torch_save_seconds(state: list[Tensor], directory: Path) -> float:
    """Return the median time of `torch.save` of *state*, atomically and on disk, as a checkpoint."""

    def save() -> None:
        with open_atomic(directory / "torch") as file:
            torch.save(state, file)

    return statistics.median(seconds(save) for _ in range(3))


def peak_bytes(directory: Path, steps: int, every: int | None, threads: int) -> int:
    """Return the largest resident memory of this process after a training."""
    train(directory, steps, every, threads)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def median_peak(directory: Path, *arguments: Any) -> int:
    """Return the median of `peak_bytes` of three new processes."""
    peaks = []
    for number in range(3):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            peaks.append(pool.submit(peak_bytes, directory / str(number), *arguments).result())
    return statistics.median(peaks)


def report_times(watch: Stopwatch, state: list[Tensor], every: int, directory: Path) -> None:
    """Print the stalls and the speed while a checkpoint is written."""
    size = sum(each.nbytes for each in state)
    count = len(watch.times) - 1  # the last one is the validation
    durations, cpu_durations = (
        [end - begin for begin, end in pairwise(times[:count])] for times in (watch.times, watch.cpu_times)
    )
    saves = range(every - 1, count - 1, every)
    rest = [index for index in range(1, count - 1) if index not in saves]
    quiet = [durations[index] for index in rest if not (watch.writing[index] or watch.writing[index + 1])]
    busy = [durations[index] for index in rest if watch.writing[index] and watch.writing[index + 1]]
    step = statistics.median(quiet)
    stalls = [durations[index] - step for index in saves]
    cpu_step = statistics.median(cpu_durations[index] for index in rest)
    cpu_stalls = [cpu_durations[index] - cpu_step for index in saves]
    copy, torch_save = copy_seconds(state), torch_save_seconds(state, directory)
    print(
        f"{size / MB:.0f} MB of state; a step takes {1e3 * step:.0f} ms, a copy {1e3 * copy:.0f} ms, ", end=""
    )
    print(f"torch.save {1e3 * torch_save:.0f} ms; {len(stalls)} saves")
    for name, stall in (("first", stalls[0]), ("others", statistics.median(stalls[1:]))):
        print(
            f"stall, {name:7} {1e3 * stall:7.1f} ms, {1e3 * (stall - copy):7.1f} ms beyond a copy, "
            f"{stall / copy:5.2f} × a copy, {stall / torch_save:6.3f} × torch.save"
        )
    print(
        f"processor time of the training thread in a stall: first {1e3 * cpu_stalls[0]:.1f} ms, "
        f"others {1e3 * statistics.median(cpu_stalls[1:]):.1f} ms"
    )
    speed = sum(step for _ in busy) / sum(busy)
    print(
        f"steps per second while a checkpoint is written: {speed:.2f} of those otherwise ({len(busy)} steps)"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="number of steps. Default: 120")
    parser.add_argument("--every", type=int, default=30, help="steps between two saves. Default: 30")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch. Default: 1")
    parser.add_argument("--directory", type=Path, help="parent folder of the files. Default: the system's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        folder = Path(name)
        watch, state = train(folder / "run", options.steps, options.every, options.threads), build_state()
        report_times(watch, state, options.every, folder)
        size = sum(each.nbytes for each in state)
        few = (3 * 5, 5, options.threads)
        del state
        extra = median_peak(folder / "with", *few) - median_peak(folder / "without", few[0], None, few[2])
        print(f"memory: {extra / size:.2f} × the state, {(extra - size) / MB:+.1f} MB beyond one copy of it")


if __name__ == "__main__":
    main()
