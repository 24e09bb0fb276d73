"""The loops that gpu.py compares; `measure` runs one epoch of one of them, in a process of its own.

All compute float32 with IEEE arithmetic, except for autocast to bf16 in the cases of GPT-2. A loop calls the
method `step` of its clock after each step.
"""

import contextlib
import functools
import gc
import importlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from loop import MEAN, STD, normalised
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stages import data
from stages.contracts.fields import StepKind
from stages.contracts.history import Split
from stages.contracts.outputs import TrainOutput
from stages.data import NormalizeBatcher
from stages.devices.compute_settings import ComputeSettings, apply_compute_settings
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import ClassificationStep, Cnn, Mlp
from stages.models.steps import backward
from stages.optim import Adam, AdamW, ClipByGlobalNorm
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import PlainRenderer

Step = Callable[[Tensor], Tensor]
"""Trains on the samples of some indices, and returns the values to read."""
Epoch = Callable[["Clock"], str | None]
"""Runs an epoch, and returns a remark for the table."""
READ_EVERY = 64
"""Steps between two reads of the metrics in the loops of an expert."""
LARGE_DEVICE_BYTES = 70e9
"""The memory for which GPT-2 is trained with 16 sequences per batch."""


class Clock:
    """The times of step *first* and step *last* of an epoch, with the device synchronized at both."""

    def __init__(self, first: int = 0, last: int = 0, synchronize: Callable[[], object] = int) -> None:
        self._first, self._last, self._synchronize = first, last, synchronize
        self._steps = 0
        self.times = [time.perf_counter()]
        """The times of the construction and of both steps, in seconds."""

    def step(self, *_: object) -> None:
        """Count a step."""
        self._steps += 1
        if self._steps in (self._first, self._last):
            self._synchronize()
            self.times.append(time.perf_counter())


@dataclass(frozen=True)
class LossOutput:
    """The output of a step of `Gpt`."""

    loss: Tensor
    size: int


class Block(nn.Module):
    """A layer of GPT-2: causal attention and a perceptron, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, T, width) for *x* of that shape."""
        query, key, value = (
            each.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for each in self.attention(self.norms[0](x)).chunk(3, dim=2)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).flatten(2))
        return x + self.layers(self.norms[1](x))


class Gpt(nn.Module):
    """GPT-2 without dropout; by default the one with 124 million parameters. Its output is the loss."""

    def __init__(
        self, vocabulary: int = 50304, length: int = 1024, width: int = 768, depth: int = 12
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, width // 64) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        for weight in (self.tokens.weight, self.positions.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of *tokens* (B, T) for *targets* (B, T)."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def valid_step(self, batch: Any) -> LossOutput:
        """Return the output of one batch."""
        return LossOutput(self(*batch), len(batch[0]))

    def train_step(self, batch: Any) -> TrainOutput[LossOutput]:
        """Return the output and the gradients of one batch."""
        item = self.valid_step(batch)
        return TrainOutput(self, backward(self, item.loss), item)


class Strided(ClassificationStep, nn.Sequential):
    """A model of large images with little arithmetic, so that the data is what takes time."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 16, 8, stride=8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
        self(torch.zeros(1, 3, 224, 224))


@dataclass(frozen=True)
class Case:
    """A model, with the size and the number of the batches of an epoch."""

    model: Callable[[], nn.Module]
    batch_size: int = 64
    steps: int = 1000
    shape: tuple[int, ...] = (1, 28, 28)
    """The shape of an image; (T,) for sequences of tokens."""
    numbers: int = 256
    """Pixels and tokens are smaller than this."""
    compile: str | None = None
    """The backend of `torch.compile`."""
    first: int = 200
    """The step from which on it is timed."""

    @property
    def is_language(self) -> bool:
        """True for GPT-2, which is trained in bf16 with clipping."""
        return len(self.shape) == 1


CNN, MLP = (partial(model, (1, 28, 28), 10) for model in (Cnn, Mlp))
GPT2 = Case(Gpt, 16, 50, (1024,), 50257, first=10)
CASES = {
    "mlp-64": Case(MLP),
    "cnn-64": Case(CNN),
    "gpt2": GPT2,
    "gpt2-save": replace(GPT2, batch_size=4, steps=500),
    "gpt2-compiled": replace(GPT2, compile="inductor"),
    "validation": Case(MLP),
    "images-224": Case(Strided, 256, 40, (3, 224, 224), first=10),
    "cnn-4096": Case(CNN, 4096, 60, first=20),
}


@functools.cache
def find_case(name: str, device: torch.device, *, quick: bool) -> Case:
    """Return the case *name*, with tiny sizes if *quick*."""
    case = CASES[name]
    if quick and case.is_language:
        backend = case.compile and "eager"
        return Case(partial(Gpt, 64, 16, 64, 2), 2, 6, (16,), 64, backend, first=2)
    if quick:
        return replace(case, batch_size=4, steps=4, first=2)
    if case.is_language and torch.cuda.mem_get_info(device)[1] < LARGE_DEVICE_BYTES:
        return replace(case, batch_size=4)
    return case


@functools.cache
def make_model(case: Case) -> Any:
    """Return one model per process, so that it is compiled once."""
    torch.manual_seed(1)
    return case.model()


@functools.cache
def make_tensors(case: Case) -> tuple[Tensor, Tensor]:
    """Return the random inputs and targets of an epoch."""
    count = case.steps * case.batch_size
    if case.is_language:
        tokens = torch.randint(case.numbers, (count, case.shape[0] + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    images = torch.randint(case.numbers, (case.batch_size, *case.shape), dtype=torch.uint8)
    return images.repeat(case.steps, *[1] * len(case.shape)), torch.randint(10, (count,))


def accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the share of correct predictions, on the device."""
    return (logits.argmax(1) == targets).float().mean()


def textbook(case: Case, device: torch.device, *, workers: int = 0) -> Epoch:
    """Read a `DataLoader` over a `TensorDataset`, and both metrics in every step."""
    model = make_model(case).to(device).train()
    dataset, pin = TensorDataset(*make_tensors(case)), workers > 0
    options = {"pin_memory": True, "multiprocessing_context": "fork"} if pin else {}
    loader = DataLoader(dataset, case.batch_size, shuffle=True, num_workers=workers, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def epoch(clock: Clock) -> None:
        losses, hits = 0.0, 0.0
        for pixels, labels in loader:
            inputs = normalised(pixels.to(device, non_blocking=pin))
            targets = labels.to(device, non_blocking=pin)
            optimizer.zero_grad()
            logits = model(inputs)
            loss = F.cross_entropy(logits, targets)
            loss.backward()
            optimizer.step()
            losses += loss.item()
            hits += accuracy(logits, targets).item()
            clock.step()

    return epoch


def textbook_validation(case: Case, device: torch.device) -> Epoch:
    """Do the same without updates."""
    model = make_model(case).to(device).eval()
    loader = DataLoader(TensorDataset(*make_tensors(case)), case.batch_size)

    @torch.no_grad()
    def epoch(clock: Clock) -> None:
        losses, hits = 0.0, 0.0
        for pixels, labels in loader:
            targets = labels.to(device)
            logits = model(normalised(pixels.to(device)))
            losses += F.cross_entropy(logits, targets).item()
            hits += accuracy(logits, targets).item()
            clock.step()

    return epoch


def lightning(case: Case, device: torch.device) -> Epoch:
    """Train with Lightning's defaults."""
    run = importlib.import_module("lightning_loop").lightning_run
    arguments = make_model(case).to(device), *make_tensors(case), case.batch_size
    accelerator = "gpu" if device.type == "cuda" else device.type
    return lambda clock: run(*arguments, accelerator=accelerator, after_step=clock.step)


def make_step(case: Case, device: torch.device, **options: Any) -> tuple[Step, int]:
    """Return a step with data on the device and fused Adam with *options*, and the number of samples."""
    model = make_model(case).to(device).train()
    images, labels = (each.to(device) for each in make_tensors(case))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, **options)

    def step(indices: Tensor) -> Tensor:
        targets = labels.index_select(0, indices)
        optimizer.zero_grad()
        logits = model(normalised(images.index_select(0, indices)))
        loss = F.cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()
        return torch.stack((loss.detach(), accuracy(logits, targets)))

    return step, len(images)


def run_steps(step: Step, samples: int, case: Case, device: torch.device, clock: Clock) -> None:
    """Run an epoch of *step*, and read its values in one transfer per 64 steps."""
    for group in batched(torch.randperm(samples, device=device).split(case.batch_size), READ_EVERY):
        values = []
        for indices in group:
            values.append(step(indices))
            clock.step()
        torch.stack(values).tolist()


def batched(batches: Sequence[Tensor], count: int) -> Iterator[Sequence[Tensor]]:
    """Yield *batches* in groups of *count*."""
    for first in range(0, len(batches), count):
        yield batches[first : first + count]


def expert(case: Case, device: torch.device) -> Epoch:
    """Keep the data on the device, use fused Adam, and read the metrics every 64 steps."""
    return partial(run_steps, *make_step(case, device), case, device)


def expert_graph(case: Case, device: torch.device) -> Epoch:
    """Do the same with one CUDA graph of the entire step."""
    step, samples = make_step(case, device, capturable=True)
    indices = torch.zeros(case.batch_size, dtype=torch.int64, device=device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(indices)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values = step(indices)

    def replay(chosen: Tensor) -> Tensor:
        indices.copy_(chosen)
        graph.replay()
        return values.clone()

    def epoch(clock: Clock, _: Step = step) -> None:  # the graph reads the data that the step holds
        run_steps(replay, samples, case, device, clock)

    return epoch


def gpt_loop(case: Case, device: torch.device) -> Epoch:
    """Train as nanoGPT does: bf16, fused AdamW, clipping; read the loss every 64 steps."""
    model = make_model(case).to(device).train()
    tokens, targets = (each.to(device) for each in make_tensors(case))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    call = torch.compile(model, dynamic=False, backend=case.compile) if case.compile else model

    def step(indices: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = call(tokens.index_select(0, indices), targets.index_select(0, indices))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return partial(run_steps, step, len(tokens), case, device)


class TimedRenderer(PlainRenderer):
    """The plain renderer, with a clock and the time of each step of *split*."""

    def __init__(self, split: Split) -> None:
        super().__init__()
        self._split = split
        self.clock = Clock()
        self.times: list[float] = []

    def step(self, progress: Any) -> None:
        """Store the time."""
        super().step(progress)
        if progress.split is self._split:
            self.times.append(time.perf_counter())
            self.clock.step()

    def report(self, first: int) -> str:
        """Return the median and the longest step after *first*, and those over 1.2 times the median."""
        steps = [1e3 * (end - start) for start, end in pairwise(self.times[first:-1])]
        median = statistics.median(steps)
        slow = [step for step in steps if step > 1.2 * median]
        return f"median {median:.1f} ms, longest {max(steps):.0f}, {len(slow)} slow steps {sum(slow):.0f} ms"


class TokenBatcher:
    """A batcher of tokens, which need no normalization."""

    def batch(self, items: Any) -> tuple[Tensor, Tensor]:
        """Return the inputs and the targets of *items*."""
        return items.inputs, items.targets


def learner(
    case: Case,
    device: torch.device,
    *,
    validates: bool = False,
    saves: bool = False,
    step: StepKind = "auto",
    resident: bool | str = "auto",
) -> Epoch:
    """Train with everything on, and one sample to validate on, or the reverse."""
    directory = tempfile.TemporaryDirectory()
    batcher = TokenBatcher() if case.is_language else NormalizeBatcher(MEAN, STD)
    tensors = make_tensors(case)
    long, short = data.TensorDataset(*tensors), data.TensorDataset(*(each[:1] for each in tensors))
    loaders = data.DataLoaderBuilder(batcher).batch_size(case.batch_size).resident(resident)
    valid = loaders.build(long if validates else short)
    train = loaders.shuffle(1).build(short if validates else long)
    builder = LearnerBuilder(directory.name).metrics(LossMetric()).devices([device]).seed(1).step(step)
    renderer = TimedRenderer(Split.VALID if validates else Split.TRAIN)
    builder.renderer(renderer)
    if saves:
        builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint_every(steps=case.steps * 3 // 5)
    if case.is_language:
        builder.precision("bf16").grad_clipping(ClipByGlobalNorm(max_norm=1.0))
    else:
        builder.metrics(AccuracyMetric())
    if case.compile:
        builder.compile(backend=case.compile)
    built = builder.build(make_model(case).to(device), AdamW() if case.is_language else Adam(), 1e-4)

    def epoch(clock: Clock) -> str | None:
        renderer.clock = clock
        with directory:
            built.fit(train, valid)
        return renderer.report(case.first) if saves else None

    return epoch


LOOPS: dict[str, Callable[..., Epoch]] = {
    "learner": learner,
    "textbook": textbook,
    "Lightning": lightning,
    "expert": expert,
    "expert, CUDA graph": expert_graph,
    "nanoGPT": gpt_loop,
    "4 pinned workers": partial(textbook, workers=4),
    "learner, validation": partial(learner, validates=True),
    "textbook, validation": textbook_validation,
    "learner, eager steps": partial(learner, step="eager"),
    "learner, saving": partial(learner, saves=True),
    "learner, prefetched": partial(learner, resident=False),
}


@dataclass(frozen=True)
class Measurement:
    """The cost of a loop."""

    start: float
    """Seconds before the steps that are timed."""
    step: float
    """µs per step."""
    reserved: float | None = None
    """The peak of reserved memory in MB, which includes that of CUDA graphs; None without CUDA."""
    note: str | None = None


def release_memory() -> None:
    """Return the memory of the device that is not in use, so that another process can use it."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def measure(loop: str, name: str, device_name: str, *, quick: bool) -> Measurement:
    """Return the cost of a step in one epoch of *loop* in the case *name*."""
    device = torch.device(device_name)
    is_cuda = device.type == "cuda"
    case = find_case(name, device, quick=quick)
    release_memory()
    if is_cuda:
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(device)
    with apply_compute_settings(ComputeSettings(), device), contextlib.redirect_stdout(io.StringIO()):
        clock = Clock(case.first, case.steps, torch.cuda.synchronize if is_cuda else int)
        note = LOOPS[loop](case, device)(clock)
    begin, first, last = clock.times
    reserved = torch.cuda.max_memory_reserved(device) / 1e6 if is_cuda else None
    return Measurement(first - begin, 1e6 * (last - first) / (case.steps - case.first), reserved, note)
