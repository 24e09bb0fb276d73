"""The cost of the loop: the Learner, a textbook loop, a hand-written fast loop, and Lightning if installed.

    python benchmarks/loop.py [--rounds 7] [--steps 1000] [--only mlp-64]
    python benchmarks/loop.py --bytecodes
    python benchmarks/loop.py --parts

60,000 uint8 images of 28×28 (random: no number depends on what is on them), Adam, loss and accuracy of
every step, one torch thread, CPU time. The contestants run in turn, each in its own process; a ratio is that
of one round, and the median over the rounds is printed. The Learner has both metrics on both splits, its log
files of every step, the check for NaN and infinity, and the plain renderer; the hand-written loop has the
same metrics, log lines and kernel of the optimizer. Machines are noisy: trust the ratios. With ``--parts``
the contestants are learners that each lack a part of a step.
"""

import argparse
import contextlib
import importlib.util
import io
import itertools
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stages import data
from stages.devices.memory import retain_freed_memory
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import ClassificationStep, Cnn
from stages.optim import Adam
from stages.renderers import PlainRenderer

MEAN, STD = 127.5, 73.9
SAMPLES = 60_000
BLOCK = 64


class Mlp(ClassificationStep, nn.Sequential):
    """784-64-10."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


class Null(ClassificationStep, nn.Module):
    """Ten weights and next to no arithmetic: what is timed is the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(B, 10)."""
        return images[:, 0, 0, :10] * self.weight


CASES: dict[str, tuple[Callable[[], Any], int, float]] = {
    "mlp-64": (Mlp, 64, 1.9),
    "mlp-512": (Mlp, 512, 2.5),
    "cnn-64": (partial(Cnn, (1, 28, 28), 10), 64, 1.05),
    "null-64": (Null, 64, 2.7),
}
HAND_WRITTEN = {"mlp-64": 0.95, "mlp-512": 0.95, "cnn-64": 1.0, "null-64": 0.90}
CONTESTANTS = ("hand-written", "learner")
PARTS: dict[str, tuple[str, str, Any]] = {
    "metrics and log lines": ("stages.learner.metering:Meter", "measure", None),
    "log lines": ("stages.learner.metering:Meter", "_log", None),
    "NaN and infinity": ("stages.optim.guard", "_all_finite", True),
    "update": ("stages.optim.stepper:Stepper", "step", None),
    "checks of the output": ("stages.learner.checks:StepChecks", "check_train_step", 64),
    "stop and save": ("stages.learner.resume.mid_epoch:MidEpochCheckpointer", "stops_after", False),
    "renderer": ("stages.renderers.plain:PlainRenderer", "step", None),
}
"""Parts of a step: the class or module and the name of its function, and what it returns without the part."""
LIGHTNING = {"mlp-64": 4.5, "mlp-512": 2.8, "cnn-64": 1.15, "null-64": 10.0}


def normalised(images: torch.Tensor) -> torch.Tensor:
    """As a textbook does it, out of place."""
    return (images.float() - MEAN) / STD


def textbook(model: Any, images: torch.Tensor, labels: torch.Tensor, batch_size: int) -> None:
    """One epoch: DataLoader over a TensorDataset, loss and accuracy of every step, nothing logged."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    losses, hits = 0.0, 0.0
    for inputs, targets in DataLoader(TensorDataset(images, labels), batch_size, shuffle=True):
        optimizer.zero_grad()
        logits = model(normalised(inputs))
        loss = F.cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()
        losses += loss.item()
        hits += (logits.argmax(1) == targets).float().mean().item()


def textbook_validation(model: Any, images: torch.Tensor, labels: torch.Tensor, batch_size: int) -> None:
    """The same without updates."""
    model.eval()
    losses, hits = 0.0, 0.0
    with torch.no_grad():
        for inputs, targets in DataLoader(TensorDataset(images, labels), batch_size):
            logits = model(normalised(inputs))
            losses += F.cross_entropy(logits, targets).item()
            hits += (logits.argmax(1) == targets).float().mean().item()


class HandWrittenLogs:
    """The log files of 64 steps at a time, and the sums of an epoch."""

    def __init__(self, directory: str, batch_size: int) -> None:
        self.losses: list[float] = []
        self.sizes: list[int] = []
        self.logits = np.empty((BLOCK, batch_size, 10), np.float32)
        self.targets = np.empty((BLOCK, batch_size), np.int64)
        self.totals = [0.0, 0.0, 0]
        self.paths = [Path(directory, name) for name in ("Loss.log", "Accuracy.log")]

    def add(self, loss: float, logits: torch.Tensor, targets: torch.Tensor) -> None:
        """Add a step."""
        number, size = len(self.losses), len(targets)
        self.logits[number, :size], self.targets[number, :size] = logits.detach().numpy(), targets.numpy()
        self.targets[number, size:] = -1
        self.losses.append(loss)
        self.sizes.append(size)
        if number + 1 == BLOCK:
            self.write()

    def write(self) -> None:
        """Write and add the steps since the last call."""
        count = len(self.losses)
        is_hit = self.logits[:count].argmax(2) == self.targets[:count]
        hits = np.count_nonzero(is_hit, 1).tolist()
        rates = [100.0 * count / size for count, size in zip(hits, self.sizes, strict=True)]
        for path, values in zip(self.paths, (self.losses, rates), strict=True):
            with path.open("a", encoding="utf-8") as file:
                file.writelines([f"{v},{size}\n" for v, size in zip(values, self.sizes, strict=True)])
        sums = sum(self.losses), sum(hits), sum(self.sizes)
        self.totals = [total + part for total, part in zip(self.totals, sums, strict=True)]
        self.losses, self.sizes = [], []


def hand_written(model: Any, images: torch.Tensor, labels: torch.Tensor, batch_size: int) -> None:
    """One epoch as an expert writes it for this model, with the metrics and log lines of the Learner.

    A batch is gathered with one call and normalized in one pass, the kernel of Adam and the engine of
    autograd are called directly, values are added and written 64 steps at a time, and freed memory is kept.
    """
    retain_freed_memory()
    parameters = list(model.parameters())
    means, squares = ([torch.zeros_like(each) for each in parameters] for _ in range(2))
    steps = torch.zeros(len(parameters))
    step_views, counts = list(steps.unbind()), steps.numpy().data
    one, offset, scale = torch.ones(()), torch.tensor(-MEAN / STD), 1.0 / STD
    run_backward = torch.autograd.Variable._execution_engine.run_backward  # noqa: SLF001  no public name
    model.train()
    with tempfile.TemporaryDirectory() as directory:
        logs = HandWrittenLogs(directory, batch_size)
        for indices in torch.randperm(len(images)).split(batch_size):
            targets = labels.index_select(0, indices)
            inputs = images.index_select(0, indices).float()
            torch.add(offset, inputs, alpha=scale, out=inputs)
            logits = model(inputs)
            loss = F.cross_entropy(logits, targets)
            run_backward((loss,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True)  # noqa: FBT003
            gradients = [each.grad for each in parameters]
            for number in range(len(counts)):
                counts[number] += 1.0
            torch._fused_adam_(
                parameters, gradients, means, squares, [], step_views,
                lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
            )  # fmt: skip
            for parameter in parameters:
                parameter.grad = None
            logs.add(loss.item(), logits, targets)
        logs.write()


def loaders(images: torch.Tensor, labels: torch.Tensor, batch_size: int, few: int) -> Any:
    """All of the data to train on and *few* samples to validate on, or the other way round."""
    builder = data.DataLoaderBuilder(data.NormalizeBatcher(MEAN, STD)).batch_size(batch_size)
    short = builder.build(data.TensorDataset(images[:few], labels[:few]))
    return builder.shuffle(1).build(data.TensorDataset(images, labels)), short


def learner(model: Any, images: torch.Tensor, labels: torch.Tensor, batch_size: int) -> None:
    """One epoch of the Learner, with one batch to validate on."""
    train, short = loaders(images, labels, batch_size, batch_size)
    fit(model, train, short)


def learner_validation(model: Any, images: torch.Tensor, labels: torch.Tensor, batch_size: int) -> None:
    """The same with one batch to train on."""
    train, short = loaders(images, labels, batch_size, batch_size)
    fit(model, short, train)


def fit(model: Any, train: Any, valid: Any) -> None:
    """Everything on, into a directory that is thrown away."""
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
        builder = LearnerBuilder(Path(directory)).metrics(LossMetric(), AccuracyMetric()).devices(["cpu"])
        builder.renderer(PlainRenderer()).seed(1).build(model, Adam(), 1e-3).fit(train, valid)


def round_of(name: str, case: str, steps: int, seed: int) -> float:
    """One epoch of contestant *name*: µs a step, of the CPU's clock."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    make, batch_size, _ = CASES[case]
    count = min(steps * batch_size, SAMPLES)
    images = torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8)
    labels = torch.randint(0, 10, (count,))
    model, run = make(), contestant(name)
    start = time.process_time()
    run(model, images, labels, batch_size)
    return 1e6 * (time.process_time() - start) / -(-count // batch_size)


def count_bytecodes(name: str, case: str) -> tuple[float, float]:
    """The instructions and the calls of Python in a step of contestant *name*; they depend on no clock."""
    counts = {"opcode": 0, "call": 0}

    def trace(frame: Any, event: str, _: object) -> Any:
        frame.f_trace_opcodes = True
        counts[event] = counts.get(event, 0) + 1
        return trace

    totals, more = [], min(3 * BLOCK, -(-SAMPLES // CASES[case][1]))
    for steps in (BLOCK, BLOCK, more):  # the first warms up
        before = dict(counts)
        sys.settrace(trace)
        try:
            round_of(name, case, steps, seed=0)
        finally:
            sys.settrace(None)
        totals.append([counts[event] - before[event] for event in ("opcode", "call")])
    instructions, calls = ((last - first) / (more - BLOCK) for first, last in zip(*totals[1:], strict=True))
    return instructions, calls


def contestant(name: str) -> Callable[..., None]:
    """By name; Lightning is imported for its own only.

    The name of a part is that of a learner without it, for which this process is changed.
    """
    if name in PARTS:
        owner, function, returned = PARTS[name]
        setattr(resolve_name(owner), function, lambda *_, **__: returned)
        return learner
    if name == "lightning":
        found: Callable[..., None] = importlib.import_module("lightning_loop").lightning_run
        return found
    return {
        "textbook": textbook,
        "hand-written": hand_written,
        "learner": learner,
        "textbook validation": textbook_validation,
        "learner validation": learner_validation,
    }[name]


def compare(
    ours: str, others: Sequence[str], case: str, steps: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """For each contestant the median ratio to *ours* and its median µs a step.

    Each has a process of its own, so that what one does to the allocator helps no other.
    """
    names = [*others, ours]
    with ExitStack() as stack:
        context = multiprocessing.get_context("spawn")
        processes = {name: stack.enter_context(ProcessPoolExecutor(1, context)) for name in names}
        taken: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(rounds + 1):
            for name in names:
                micros = processes[name].submit(round_of, name, case, steps, turn).result()
                if turn:  # the first round warms up
                    taken[name].append(micros)
    return {
        name: (
            statistics.median(theirs / own for theirs, own in zip(times, taken[ours], strict=True)),
            statistics.median(times),
        )
        for name, times in taken.items()
    }


def report(title: str, found: dict[str, tuple[float, float]], wanted: dict[str, float]) -> None:
    """A line a contestant."""
    for name, (ratio, micros) in found.items():
        goal = f"  (goal {wanted[name]} ×)" if name in wanted else ""
        print(f"{title:<18} {name:<20}{micros:8.0f} µs a step   learner is {ratio:5.2f} × as fast{goal}")


def main() -> None:
    """Print every case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--only", help="one of " + ", ".join([*CASES, "validation"]))
    parser.add_argument("--parts", action="store_true", help="measure learners without a part of a step")
    parser.add_argument("--bytecodes", action="store_true", help="count instructions of Python instead")
    options = parser.parse_args()
    if options.bytecodes:
        for case, name in itertools.product([options.only] if options.only else CASES, CONTESTANTS):
            instructions, calls = count_bytecodes(name, case)
            print(f"{case:<18} {name:<20}{instructions:8.0f} instructions in {calls:5.1f} calls a step")
        return
    if options.parts:
        case = options.only or "null-64"
        found = compare("learner", [*PARTS], case, options.steps, options.rounds)
        for name in PARTS:
            micros = (1.0 - found[name][0]) * found["learner"][1]
            print(f"{case:<18} {name:<24}{micros:8.1f} µs a step")
        return
    others = ["textbook", "hand-written"] + ["lightning"] * bool(importlib.util.find_spec("lightning"))
    for case, (_, _, goal) in CASES.items():
        if options.only in {None, case}:
            wanted = {"textbook": goal, "lightning": LIGHTNING[case]}
            wanted |= {"hand-written": HAND_WRITTEN[case]} if case in HAND_WRITTEN else {}
            report(case, compare("learner", others, case, options.steps, options.rounds), wanted)
    if options.only in {None, "validation"}:
        found = compare(
            "learner validation", ["textbook validation"], "mlp-64", options.steps, options.rounds
        )
        report("validation mlp-64", found, {"textbook validation": 2.3})


if __name__ == "__main__":
    main()
