"""The checks of gpu.py: short trainings, each in a process of its own, and what their results must be."""

import faulthandler
import gc
import json
import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stages.contracts.errors import StageError
from stages.data import DataLoader, DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric, Mean
from stages.models import ClassificationStep, Cnn, Mlp
from stages.optim import Adam, AdamW, ClipByGlobalNorm, Sgd
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer

CONTEXT = multiprocessing.get_context("forkserver")
"""Imports torch once, in a process that never uses CUDA."""
PROCESS_LIMIT_SECONDS = 60.0
COMPILER_LIMIT_SECONDS = 150.0
CPU_LIMIT_SECONDS = 900.0
SHAPE, CLASSES, BATCH_SIZE = (1, 28, 28), 10, 64
NOT_CAPTURED = "not captured in a CUDA graph"
"""The part of a line in ``experiment.log`` that reports eager steps."""


class ReadingMlp(Mlp):
    """A model that reads the device in each step, so that a capture fails."""

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss, doubled if a number that the host reads is positive."""
        loss = super().loss(logits, targets)
        return 2 * loss if loss.item() > 0 else loss


class NormalizedMlp(ClassificationStep, nn.Sequential):
    """A perceptron with batch normalization."""

    def __init__(self, dropout: float = 0.0) -> None:
        layers = (
            nn.Linear(784, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(64, CLASSES),
        )
        super().__init__(nn.Flatten(), *layers)


class DoubleMlp(Mlp):
    """A model with weights in float64."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(SHAPE, CLASSES, dropout=dropout)
        self.double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits, float64."""
        return super().forward(inputs.double())


class EmptyMlp(Mlp):
    """A model with a parameter that has no elements."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(SHAPE, CLASSES, dropout=dropout)
        self.nothing = nn.Parameter(torch.zeros(0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits, to which the sum of no elements is added."""
        return super().forward(inputs) + self.nothing.sum()


class Lstm(ClassificationStep, nn.Module):
    """Two layers of LSTM over the rows of an image, with dropout between them."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(28, 32, num_layers=2, dropout=dropout, batch_first=True)
        self.output = nn.Linear(32, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits of the last state."""
        return self.output(self.recurrent(inputs.squeeze(1))[0][:, -1])


class ReadingMetric:
    """A metric that reads the device, so that it is measured outside of the graph."""

    name = "Reading"
    unit = None

    def measure(self, output: Any) -> Mean:
        """Return the loss, read by the host."""
        return Mean(output.loss.item(), 1)


MODELS: dict[str, Callable[..., Any]] = {
    "cnn": partial(Cnn, SHAPE, CLASSES),
    "mlp": partial(Mlp, SHAPE, CLASSES),
    "reading": partial(ReadingMlp, SHAPE, CLASSES),
    "batch norm": NormalizedMlp,
    "float64": DoubleMlp,
    "empty parameter": EmptyMlp,
    "lstm": Lstm,
}
OPTIMIZERS = {"adam": Adam(), "adamw": AdamW(), "sgd": Sgd(momentum=0.9)}


@dataclass(frozen=True)
class Training:
    """A deterministic training of a shipped model on *samples* random images."""

    device: str
    samples: int
    model: str
    precision: Any = "f32"
    compile: str | None = None
    """The backend of `torch.compile`; None to train without it."""
    options: tuple[tuple[Any, ...], ...] = ()
    """Other methods of the builder, each with its arguments."""
    resident: bool | str = "auto"
    """True for data on the device, False for batches that are copied ahead."""
    dropout: float = 0.5
    epochs: int = 2
    optimizer: str = "adam"

    @property
    def limit(self) -> float:
        """The seconds after which its process is ended."""
        compiles = self.compile or any(name == "compile" for name, *_ in self.options)
        if self.device == "cpu":
            return CPU_LIMIT_SECONDS
        return COMPILER_LIMIT_SECONDS if compiles else PROCESS_LIMIT_SECONDS

    @property
    def steps(self) -> int:
        """The number of training batches in an epoch; the last one is smaller."""
        return math.ceil(self.samples / BATCH_SIZE)

    @property
    def valid_steps(self) -> int:
        """The number of validation batches in an epoch."""
        return max(2, self.steps // 4)


class AtStep(NoRenderer):
    """A renderer that calls *action* after a number of steps of both splits."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        super().__init__()
        self.left, self._action = step, action

    def step(self, progress: Any) -> None:  # noqa: ARG002  required by the protocol
        """Count the step."""
        self.left -= 1
        if self.left == 0:
            self._action()


class SlowMlp(Mlp):
    """A model whose forward pass takes seconds of the device."""

    seconds = 2.0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Wait on the device of *inputs*, then compute the logits."""
        if inputs.is_cuda:
            torch.cuda._sleep(int(self.seconds * 1.7e9))  # noqa: SLF001  cycles, at about 1.7 GHz
        else:
            time.sleep(self.seconds)
        return super().forward(inputs)


def make_split(samples: int, seed: int) -> TensorDataset:
    """Return uint8 images that show their class in noise; every tenth label is random."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(0, 256, (CLASSES, *SHAPE), generator=generator)
    generator.manual_seed(seed)
    labels = torch.randint(0, CLASSES, (samples,), generator=generator)
    noise = torch.randint(0, 256, (samples, *SHAPE), generator=generator)
    images = ((classes[labels] + 3 * noise) // 4).to(torch.uint8)
    labels[::10] = torch.randint(0, CLASSES, labels[::10].shape, generator=generator)
    return TensorDataset(images, labels)


def start(training: Training, directory: Path) -> LearnerBuilder:
    """Return the builder of a learner that resumes from the newest checkpoint in *directory*, if any."""
    builder = LearnerBuilder(directory).num_epochs(training.epochs).seed(1).devices([training.device])
    builder.deterministic().precision(training.precision).metrics(LossMetric(), AccuracyMetric())
    builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto")
    builder.checkpoint_every(steps=max(2, training.steps // 5))
    if training.compile:
        builder.compile(backend=training.compile)
    for name, *arguments in training.options:
        getattr(builder, name)(*arguments)
    return builder.renderer(NoRenderer())


def make_loaders(training: Training) -> tuple[DataLoader, DataLoader]:
    """Return the loaders of both splits."""
    builder = DataLoaderBuilder(NormalizeBatcher(127.5, 73.9)).batch_size(BATCH_SIZE)
    builder.resident(training.resident)
    valid = builder.build(make_split(training.valid_steps * BATCH_SIZE, seed=2))
    return builder.shuffle(1).build(make_split(training.samples, seed=1)), valid


def train(
    training: Training,
    directory: Path,
    stop_after: int | None = None,
    kill_after: int | None = None,
    visible: str | None = None,
) -> float:
    """Train in *directory* from its newest checkpoint; return the last validation loss, or NaN if stopped.

    The run is stopped, or this process killed, after a number of steps. *visible* is the value of
    ``CUDA_VISIBLE_DEVICES``.
    """
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    torch.manual_seed(3)
    model = MODELS[training.model](dropout=training.dropout)
    builder = start(training, directory)
    if stop_after is not None:
        builder.renderer(AtStep(stop_after, builder.interrupter().stop))
    if kill_after is not None:
        builder.renderer(AtStep(kill_after, partial(os.kill, os.getpid(), signal.SIGKILL)))
    learner = builder.build(model, OPTIMIZERS[training.optimizer], 1e-3)
    learner.fit(*make_loaders(training))
    return math.nan if learner.interrupted else learner.history.value(training.epochs, "valid", "Loss")


def train_rank(training: Training, directory: Path, rank: int, port: int, stop_after: int | None) -> float:
    """Train as *rank* of two, in the environment that torchrun would set."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in (ranks | rendezvous).items()})
    return train(training, directory, stop_after)


def train_with_stops(training: Training, directory: Path, stops: Sequence[int]) -> float:
    """Train with an interruption after each number of steps in *stops*; return the last validation loss."""
    for stop_after in stops:
        train(training, directory, stop_after)
    return train(training, directory)


def train_slowly(training: Training, directory: Path, seconds: float) -> tuple[int, str | None]:
    """Send SIGTERM in the middle of a step of *seconds*.

    Return the number of steps that ended after it, and the position at which the run would resume.
    """
    SlowMlp.seconds = seconds
    builder = start(training, directory)
    interrupter, left = builder.interrupter(), []

    def stop(*_: object) -> None:
        left.append(renderer.left)
        interrupter.stop("SIGTERM")

    signal.signal(signal.SIGTERM, stop)
    timer = threading.Timer(1.5 * seconds, os.kill, (os.getpid(), signal.SIGTERM))
    renderer = AtStep(1, timer.start)
    builder.renderer(renderer).build(SlowMlp(SHAPE, CLASSES), Adam(), 1e-3).fit(*make_loaders(training))
    learner = start(training, directory).build(SlowMlp(SHAPE, CLASSES), Adam(), 1e-3)
    return left[0] - renderer.left, learner.resumed


def find_synchronizations(device: str, kind: str, steps: int, *, workers: int = 0) -> list[str]:
    """Return the files of the host synchronizations in *steps* training steps after the first ten.

    With *workers*, the batches are those of torch's DataLoader in pinned memory.
    """
    first, modes = 10, iter(("warn", "default"))

    def switch() -> None:
        torch.cuda.set_sync_debug_mode(next(modes))
        renderer.left = steps

    training = Training(device, (first + steps + 1) * BATCH_SIZE, "cnn", epochs=1)
    train, valid = make_loaders(training)
    if workers:
        images, labels = train.dataset.inputs.float().div_(255.0), train.dataset.targets
        train = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(images, labels), BATCH_SIZE, num_workers=workers, pin_memory=True
        )
    renderer = AtStep(first, switch)
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        builder = LearnerBuilder(directory).devices([device]).renderer(renderer).step(kind)
        learner = builder.metrics(LossMetric(), AccuracyMetric()).build(MODELS["cnn"](), Adam(), 1e-3)
        learner.fit(train, valid)
        log = Path(directory, "experiment.log").read_text()
    if kind == "captured" and NOT_CAPTURED in log:
        raise FailedError("the steps were not captured")
    return [Path(warning.filename).name for warning in caught if "synchronizing CUDA" in str(warning.message)]


def train_to_nan(device: str, directory: Path, bad_batch: int) -> str:
    """Return the error of a run in which batch *bad_batch* contains infinity."""
    images = torch.rand(40 * BATCH_SIZE, *SHAPE)
    images[BATCH_SIZE * bad_batch - 1] = torch.inf
    builder = DataLoaderBuilder(NormalizeBatcher()).batch_size(BATCH_SIZE)
    loader = builder.build(TensorDataset(images, torch.arange(len(images)) % CLASSES))
    learner = LearnerBuilder(directory).devices([device]).renderer(NoRenderer()).metrics(LossMetric())
    try:
        learner.build(MODELS["mlp"](), Adam(), 1e-3).fit(loader, loader)
    except StageError as error:
        return str(error)
    return "no error"


def train_on_wrong_label(device: str) -> None:
    """Train with a label that is not one of the classes; exit with the code of the `StageError`."""
    split = make_split(640, seed=1)
    split.targets[100] = CLASSES
    loader = DataLoaderBuilder(NormalizeBatcher(127.5, 73.9)).batch_size(BATCH_SIZE).build(split)
    with tempfile.TemporaryDirectory() as directory:
        builder = LearnerBuilder(directory).devices([device]).renderer(NoRenderer()).metrics(LossMetric())
        try:
            builder.build(MODELS["mlp"](), Adam(), 1e-3).fit(loader, loader)
        except StageError as error:
            sys.stderr.write(f"error: {error}\n")
            sys.exit(error.exit_code)


def train_twice(training: Training, directory: Path) -> tuple[int, int]:
    """Return the reserved memory in bytes after each of two trainings in this process."""
    reserved = []
    for number in range(2):
        train(training, directory / str(number))
        gc.collect()
        reserved.append(torch.cuda.memory_reserved())
    return reserved[0], reserved[1]


def exhaust_memory(device: str, images: int = 10**6) -> None:
    """Train on one batch of *images*; print the device's memory in use before and after the error as JSON.

    Exits with the code of the `StageError`, as the command of a stage does.
    """
    pixels, labels = torch.zeros((1, *SHAPE), dtype=torch.uint8), torch.zeros(images, dtype=torch.int64)
    split = TensorDataset(pixels.expand(images, *SHAPE), labels)
    loader = DataLoaderBuilder(NormalizeBatcher()).batch_size(images).resident(resident=False).build(split)
    with tempfile.TemporaryDirectory() as directory:
        builder = LearnerBuilder(directory).devices([device]).renderer(NoRenderer()).metrics(LossMetric())
        learner = builder.build(MODELS["cnn"](), Adam(), 1e-3)
        before = torch.cuda.memory_allocated()
        try:
            learner.fit(loader, loader)
        except StageError as error:
            after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            print(json.dumps({"before": before, "allocated": after[0], "reserved": after[1]}))
            sys.stderr.write(f"error: {error}\n")
            sys.exit(error.exit_code)


def read_files(directory: Path) -> dict[str, bytes]:
    """Return the content of every file of a run, except for the log with times."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "experiment.log"
    }


class FailedError(Exception):
    """A check that failed."""


class SkippedError(Exception):
    """A check or a row that cannot run here."""


@dataclass(frozen=True)
class Setup:
    """The arguments of all checks and rows."""

    device: str
    quick: bool
    folder: Path
    """An empty folder for the trainings."""

    def training(self, model: str, **options: Any) -> Training:
        """Return a training for a comparison of bytes."""
        return Training(self.device, 300 if self.quick else 2540, model, **options)

    def require_cuda(self) -> None:
        """Raise `SkippedError` without CUDA."""
        if not self.device.startswith("cuda"):
            raise SkippedError("needs CUDA")


def open_process(seconds: float = PROCESS_LIMIT_SECONDS) -> ProcessPoolExecutor:
    """Return an executor with one process, which prints its stack and exits after *seconds*.

    The table has the standard output to itself: what the process prints is written to the standard error.
    """
    return ProcessPoolExecutor(1, CONTEXT, initializer=_begin, initargs=(seconds,))


def _begin(seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True)
    sys.stdout = sys.stderr


def run_apart(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return the result of *function* in a process of its own, with the limit of a training among them."""
    limits = [part.limit for part in arguments if isinstance(part, Training)]
    with open_process(*limits) as process:
        return process.submit(function, *arguments, **options).result()


def run_program(call: str) -> subprocess.CompletedProcess[str]:
    """Return the result of a Python that evaluates *call*, a function of this module."""
    command = [sys.executable, "-c", f"import gpu_checks; gpu_checks.{call}"]
    return subprocess.run(  # noqa: S603  the interpreter of this process
        command, capture_output=True, text=True, check=False, timeout=PROCESS_LIMIT_SECONDS
    )


_results: dict[Any, Any] = {}
_locks: dict[Any, threading.Lock] = defaultdict(threading.Lock)


def run_once(key: Any, run: Callable[[], Any]) -> Any:
    """Return the result of *run*, which is called once for *key*, also if several checks need it."""
    with _locks[key]:
        if key not in _results:
            _results[key] = run()
        return _results[key]


def train_reference(setup: Setup, model: str, **options: Any) -> dict[str, bytes]:
    """Return the files of an uninterrupted training."""
    name = f"{model}-{'-'.join(map(str, options.values()))}-reference".replace(" ", "")

    def run() -> dict[str, bytes]:
        directory = Path(tempfile.mkdtemp(dir=setup.folder))
        run_apart(train, setup.training(model, **options), directory)
        return read_files(directory)

    return run_once(name, run)


def compare(expected: dict[str, bytes], directory: Path) -> str:
    """Raise `FailedError` if the files in *directory* are not those *expected*."""
    files = read_files(directory)
    different = [name for name in sorted({*expected, *files}) if expected.get(name) != files.get(name)]
    if different or not expected:
        raise FailedError(f"{len(different)} of {len(expected)} files differ, the first is {different[:1]}")
    return f"{len(files)} files are equal"


def check_repetition(setup: Setup, model: str) -> str:
    """Train twice."""
    directory = Path(tempfile.mkdtemp(dir=setup.folder))
    run_apart(train, setup.training(model), directory)
    return compare(train_reference(setup, model), directory)


def check_variant(setup: Setup, **options: Any) -> str:
    """Train with *options*, which may change no byte."""
    directory = Path(tempfile.mkdtemp(dir=setup.folder))
    run_apart(train, setup.training("cnn", **options), directory)
    return compare(train_reference(setup, "cnn"), directory)


def check_capture(setup: Setup, model: str = "mlp", reason: str | None = None, **options: Any) -> str:
    """Train with captured and with eager steps, which may not differ in a byte.

    With a *reason*, the steps must not be captured, and the log must contain it.
    """
    setup.require_cuda()
    others = options.pop("options", ())
    folders = {kind: Path(tempfile.mkdtemp(dir=setup.folder)) for kind in ("eager", "captured")}
    for kind, folder in folders.items():
        training = setup.training(model, options=(*others, ("step", kind)), **options)
        run_apart(train, training, folder)
    log = (folders["captured"] / "experiment.log").read_text().splitlines()
    lines = [line.partition("graph: ")[2] for line in log if NOT_CAPTURED in line]
    text = f"{compare(read_files(folders['eager']), folders['captured'])}; {lines or 'captured'}"
    if bool(lines) != bool(reason) or (reason and reason not in lines[0]):
        raise FailedError(text)
    return text


def check_lstm(setup: Setup) -> str:
    """Train a model with dropout of cuDNN, whose random state is that of the process, so bytes may differ."""
    setup.require_cuda()
    directory = Path(tempfile.mkdtemp(dir=setup.folder))
    run_apart(train, setup.training("lstm", options=(("step", "captured"),)), directory)
    log = (directory / "experiment.log").read_text()
    if "dropout" not in log.partition(NOT_CAPTURED)[2]:
        raise FailedError(log[-500:])
    return "not captured"


def check_step_synchronizations(setup: Setup, kind: str, workers: int = 0) -> str:
    """Find the host synchronizations of training steps: there is one in 64 steps, where values are read."""
    setup.require_cuda()
    steps = 100 if setup.quick else 500
    places = run_apart(find_synchronizations, setup.device, kind, steps, workers=workers)
    others = sorted({place for place in places if place != "rank_values.py"})
    text = f"{len(places)} in {steps} steps"
    if others or len(places) > steps / 64 + 1:
        raise FailedError(f"{text}, of which in other places than rank_values.py: {others}")
    return text


def check_resume(setup: Setup, model: str, **options: Any) -> str:
    """Stop in training, in validation, and in training of the next epoch."""
    training, directory = setup.training(model, **options), Path(tempfile.mkdtemp(dir=setup.folder))
    stops = training.steps // 3 + 1, training.steps - training.steps // 3, training.steps // 2
    run_apart(train_with_stops, training, directory, stops)
    return compare(train_reference(setup, model, **options), directory)


def check_kill(setup: Setup, model: str, **options: Any) -> str:
    """Kill the process in the middle of the second epoch."""
    training, directory = setup.training(model, **options), Path(tempfile.mkdtemp(dir=setup.folder))
    try:
        run_apart(train, training, directory, kill_after=training.steps * 3 // 2 + training.valid_steps)
    except BrokenProcessPool:
        run_apart(train, training, directory)
        return compare(train_reference(setup, model, **options), directory)
    raise FailedError("the process was not killed")


def check_short_batch(setup: Setup) -> str:
    """Stop a compiled training just before the smaller last batch, and resume it."""
    options = {"compile": "eager" if setup.quick else "inductor"}
    training, directory = setup.training("mlp", **options), Path(tempfile.mkdtemp(dir=setup.folder))
    run_apart(train, training, directory, stop_after=training.steps - 1)
    run_apart(train, training, directory)
    return compare(train_reference(setup, "mlp", **options), directory)


def check_visible_devices(setup: Setup) -> str:
    """Save with one visible device, and resume with two."""
    setup.require_cuda()
    if run_apart(torch.cuda.device_count) < 2:
        raise SkippedError("needs two devices")
    directory = setup.folder / "visible"
    run_apart(train, setup.training("cnn"), directory, stop_after=3, visible="0")
    run_apart(train, setup.training("cnn"), directory, visible="0,1")
    return compare(train_reference(setup, "cnn"), directory)


def train_on_two_ranks(training: Training, directory: Path, stop_after: int | None = None) -> float:
    """Train on two ranks; return the last validation loss, or NaN if rank 1 stopped them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with open_process() as first, open_process() as second:
        other = second.submit(train_rank, training, directory, 1, port, stop_after)
        loss: float = first.submit(train_rank, training, directory, 0, port, None).result()
        other.result()
    return loss


def check_ranks(setup: Setup, tolerance: float = 1e-4) -> str:
    """Train on two ranks of one device, over gloo, and resume on one rank what two have saved."""
    training = Training(setup.device, 256 if setup.quick else 16384, "mlp", epochs=3, dropout=0.0)
    one, two = train_to_loss(setup, training), train_on_two_ranks(training, setup.folder / "ranks")
    train_on_two_ranks(training, setup.folder / "ranks-stopped", stop_after=training.steps // 2)
    resumed = run_apart(train, training, setup.folder / "ranks-stopped")
    return report_differences({"ranks": two, "resumed": resumed}, one, tolerance)


def train_to_loss(setup: Setup, training: Training) -> float:
    """Return the last validation loss of *training*."""

    def run() -> float:
        loss: float = run_apart(train, training, Path(tempfile.mkdtemp(dir=setup.folder)))
        return loss

    return run_once(training, run)


def report_differences(losses: dict[str, float], expected: float, tolerance: float) -> str:
    """Return the relative differences of *losses*. Raises `FailedError` if one is above *tolerance*."""
    differences = {name: abs(loss / expected - 1) for name, loss in losses.items()}
    text = ", ".join(f"{name} {difference:.1e}" for name, difference in differences.items())
    if not max(differences.values()) <= tolerance:
        raise FailedError(f"the loss differs by {text} (limit {tolerance})")
    return f"difference of the loss: {text}"


def check_loss(setup: Setup, tolerance: float, model: str = "mlp", **options: Any) -> str:
    """Train with *options*, to a loss that differs by at most *tolerance* from that of eager float32.

    There is no dropout, whose masks depend on the precision.
    """
    samples = 256 if setup.quick else 16384
    expected = Training(setup.device, samples, model, epochs=3, dropout=0.0)
    loss = train_to_loss(setup, replace(expected, **options))
    return report_differences({model: loss}, train_to_loss(setup, expected), tolerance)


def check_autotuning(setup: Setup) -> str:
    """Train a model that is compiled with autotuning, in TF32."""
    setup.require_cuda()
    options = (("compile", "max-autotune-no-cudagraphs"),)
    return check_loss(setup, 0.01, precision="tf32", options=options)


def check_cpu(setup: Setup, model: str, tolerance: float = 1e-3) -> str:
    """Train on the device and on a CPU."""
    training = Training(setup.device, 300 if setup.quick else 2560, model, epochs=1, dropout=0.0)
    losses = {setup.device: train_to_loss(setup, training)}
    return report_differences(losses, train_to_loss(setup, replace(training, device="cpu")), tolerance)


def check_nan(setup: Setup) -> str:
    """Train on a batch with infinity, which the error must name."""
    message: str = run_apart(train_to_nan, setup.device, setup.folder / "nan", 30)
    if "epoch 1, batch 30: NaN in loss" not in message:
        raise FailedError(message)
    return message


def check_out_of_memory(setup: Setup) -> str:
    """Train on a batch of a million images."""
    setup.require_cuda()
    ended = run_program(f"exhaust_memory({setup.device!r})")
    wanted = "at most ", "batch_size", "gradient_checkpointing", "precision"
    check_message(ended, wanted)
    memory = json.loads(ended.stdout)
    if memory["reserved"] > memory["before"] + 2**28:
        raise FailedError(f"memory in use after the error: {memory}")
    return ended.stderr.strip()


def check_wrong_label(setup: Setup) -> str:
    """Train with a label outside of the classes, which only the device finds."""
    setup.require_cuda()
    ended = run_program(f"train_on_wrong_label({setup.device!r})")
    check_message(ended, ("a label outside the classes", "device: cpu"))
    return ended.stderr.strip()


def check_message(ended: "subprocess.CompletedProcess[str]", wanted: Sequence[str]) -> None:
    """Raise `FailedError` unless a program ended with code 1 and a message that contains *wanted*."""
    missing = [text for text in wanted if text not in ended.stderr]
    if ended.returncode != 1 or missing or "Traceback" in ended.stderr:
        raise FailedError(f"exit code {ended.returncode}, without {missing}: {ended.stderr[-1500:]}")


def check_two_fits(setup: Setup) -> str:
    """Train twice in one process: the second training reserves no more memory."""
    setup.require_cuda()
    first, second = run_apart(train_twice, setup.training("cnn"), setup.folder / "twice")
    text = f"{first / 1e6:.0f} and {second / 1e6:.0f} MB are reserved"
    if first != second:
        raise FailedError(text)
    return text


def check_sigterm(setup: Setup) -> str:
    """Send SIGTERM in the middle of a step of 2 s."""
    training = Training(setup.device, 640, "mlp")
    directory = setup.folder / "sigterm"
    later, resumed = run_apart(train_slowly, training, directory, 0.2 if setup.quick else 2.0)
    if later > 2 or resumed is None:
        raise FailedError(f"{later} more steps, resumes {resumed}")
    return f"{later} more steps, resumes {resumed}"


FP16 = {"precision": "fp16"}
WINDOW = {"optimizer": "sgd", "options": (("grads_accumulation", 3),)}
CLIPPED = {"optimizer": "adamw", "options": (("grad_clipping", ClipByGlobalNorm(max_norm=0.1)),)}
CHECKS: dict[str, Callable[[Setup], str]] = {
    "compile-short-batch": check_short_batch,
    "tf32-max-autotune": check_autotuning,
    "captured-compiled": partial(check_capture, compile="inductor"),
    "cpu-cnn": partial(check_cpu, model="cnn"),
    "cpu-mlp": partial(check_cpu, model="mlp"),
    "cpu-batch-norm": partial(check_cpu, model="batch norm"),
    "repeat-cnn": partial(check_repetition, model="cnn"),
    "repeat-mlp": partial(check_repetition, model="mlp"),
    "captured-cnn": partial(check_capture, model="cnn"),
    "captured-adamw": partial(check_capture, **CLIPPED),
    "captured-window": partial(check_capture, **WINDOW),
    "captured-bf16": partial(check_capture, model="cnn", precision="bf16"),
    "captured-fp16": partial(check_capture, model="cnn", **FP16),
    "captured-on-host": partial(check_capture, resident=False),
    "captured-float64": partial(check_capture, model="float64"),
    "captured-empty": partial(check_capture, model="empty parameter"),
    "capture-model-reads": partial(check_capture, model="reading", reason="the capture failed"),
    "capture-metric-reads": partial(check_capture, options=(("metrics", ReadingMetric()),)),
    "capture-checkpointing": partial(
        check_capture, options=(("gradient_checkpointing",),), reason="gradient checkpointing"
    ),
    "capture-lstm": check_lstm,
    "data-on-host": partial(check_variant, resident=False),
    "resume-cnn": partial(check_resume, model="cnn"),
    "resume-mlp": partial(check_resume, model="mlp"),
    "resume-fp16": partial(check_resume, model="cnn", **FP16),
    "resume-window": partial(check_resume, model="mlp", **WINDOW),
    "kill-cnn": partial(check_kill, model="cnn"),
    "kill-fp16": partial(check_kill, model="cnn", **FP16),
    "kill-window": partial(check_kill, model="mlp", **WINDOW),
    "visible-devices": check_visible_devices,
    "ranks": check_ranks,
    "nan": check_nan,
    "steps-eager": partial(check_step_synchronizations, kind="eager"),
    "steps-captured": partial(check_step_synchronizations, kind="captured"),
    "steps-pinned-loader": partial(check_step_synchronizations, kind="captured", workers=2),
    "tf32": partial(check_loss, tolerance=0.01, model="cnn", precision="tf32"),
    "bf16": partial(check_loss, tolerance=0.01, model="cnn", precision="bf16"),
    "fp16": partial(check_loss, tolerance=0.02, model="cnn", precision="fp16"),
    "wrong-label": check_wrong_label,
    "two-fits": check_two_fits,
    "sigterm": check_sigterm,
    "out-of-memory": check_out_of_memory,
}
ALONE = ("out-of-memory",)
"""Checks that use all memory of the device."""
