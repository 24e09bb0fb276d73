"""The checks of gpu.py: short trainings, each in a process of its own, and what their results must be."""

import faulthandler
import functools
import importlib.util
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
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_loops import count_synchronizations

from stages.contracts.errors import StageError
from stages.data import DataLoader, DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import Cnn, Mlp
from stages.optim import Adam, AdamW, ClipByGlobalNorm, Sgd
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer

CONTEXT = multiprocessing.get_context("forkserver")
"""Imports torch once, in a process that never uses CUDA."""
PROCESS_LIMIT_SECONDS = 240.0
SHAPE, CLASSES, BATCH_SIZE = (1, 28, 28), 10, 64
NOT_CAPTURED = "not captured in a CUDA graph"
"""The part of a line in ``experiment.log`` that reports eager steps."""


class ReadingMlp(Mlp):
    """A model that reads the device in each step, so that a capture fails."""

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss, doubled if a number that the host reads is positive."""
        loss = super().loss(logits, targets)
        return 2 * loss if loss.item() > 0 else loss


MODELS: dict[str, Callable[..., Any]] = {
    "cnn": partial(Cnn, SHAPE, CLASSES),
    "mlp": partial(Mlp, SHAPE, CLASSES),
    "reading": partial(ReadingMlp, SHAPE, CLASSES),
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
    options: tuple[tuple[str, Any], ...] = ()
    """Other methods of the builder, with their arguments."""
    resident: bool | str = "auto"
    """True for data on the device, False for batches that are copied ahead."""
    dropout: float = 0.5
    epochs: int = 2
    optimizer: str = "adam"

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
    for name, argument in training.options:
        getattr(builder, name)(argument)
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


def find_synchronizations(device: str, kind: str, steps: int) -> list[str]:
    """Return the files of the host synchronizations in *steps* training steps after the first ten."""
    first, modes = 10, iter(("warn", "default"))

    def switch() -> None:
        torch.cuda.set_sync_debug_mode(next(modes))
        renderer.left = steps

    training = Training(device, (first + steps + 1) * BATCH_SIZE, "cnn", epochs=1)
    renderer = AtStep(first, switch)
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        builder = LearnerBuilder(directory).devices([device]).renderer(renderer).step(kind)
        learner = builder.metrics(LossMetric(), AccuracyMetric()).build(MODELS["cnn"](), Adam(), 1e-3)
        learner.fit(*make_loaders(training))
        is_captured = NOT_CAPTURED not in Path(directory, "experiment.log").read_text()
    if is_captured != (kind == "captured"):
        raise FailedError("the steps were not captured")
    return [Path(each.filename).name for each in found if "synchronizing CUDA" in str(each.message)]


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


def require(feature: str, remark: str = "") -> None:
    """Raise `SkippedError` if the project lacks *feature*, a module or a method of the builder."""
    exists = importlib.util.find_spec(feature) if "." in feature else hasattr(LearnerBuilder, feature)
    if not exists:
        raise SkippedError(f"not built yet{remark}")


def open_process() -> ProcessPoolExecutor:
    """Return an executor with one process, which prints its stack and exits when its time is up."""
    limit = partial(faulthandler.dump_traceback_later, PROCESS_LIMIT_SECONDS, exit=True)
    return ProcessPoolExecutor(1, CONTEXT, initializer=limit)


def run_apart(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return the result of *function* in a process of its own."""
    with open_process() as process:
        return process.submit(function, *arguments, **options).result()


@functools.cache
def train_reference(setup: Setup, model: str) -> dict[str, bytes]:
    """Return the files of an uninterrupted training."""
    run_apart(train, setup.training(model), setup.folder / f"{model}-reference")
    return read_files(setup.folder / f"{model}-reference")


def compare(expected: dict[str, bytes], directory: Path) -> str:
    """Raise `FailedError` if the files in *directory* are not those *expected*."""
    found = read_files(directory)
    different = [name for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)]
    if different or not expected:
        raise FailedError(f"{len(different)} of {len(expected)} files differ, the first is {different[:1]}")
    return f"{len(found)} files are equal"


def check_repetition(setup: Setup, model: str) -> str:
    """Train twice."""
    run_apart(train, setup.training(model), setup.folder / f"{model}-again")
    return compare(train_reference(setup, model), setup.folder / f"{model}-again")


def check_variant(setup: Setup, name: str, feature: str, **options: Any) -> str:
    """Train with *options*, which may change no byte, if the project has *feature*."""
    require(feature)
    run_apart(train, setup.training("cnn", **options), setup.folder / name)
    return compare(train_reference(setup, "cnn"), setup.folder / name)


def check_capture(setup: Setup, name: str, model: str = "mlp", **options: Any) -> str:
    """Train with captured and with eager steps, which may not differ in a byte."""
    setup.require_cuda()
    given = options.pop("options", ())
    eager, captured = (setup.folder / f"{name}-{kind}" for kind in ("eager", "captured"))
    for kind, folder in (("eager", eager), ("captured", captured)):
        training = setup.training(model, options=(*given, ("step", kind)), **options)
        run_apart(train, training, folder)
    lines = [line for line in (captured / "experiment.log").read_text().splitlines() if NOT_CAPTURED in line]
    if bool(lines) != (model == "reading"):
        raise FailedError(f"the captured run has the lines {lines}")
    remark = lines[0].partition("graph: ")[2] if lines else "captured"
    return f"{compare(read_files(eager), captured)}; {remark}"


def check_step_synchronizations(setup: Setup, kind: str) -> str:
    """Find the host synchronizations of training steps: there is one in 64 steps, where values are read."""
    setup.require_cuda()
    steps = 100 if setup.quick else 500
    places = run_apart(find_synchronizations, setup.device, kind, steps)
    others = sorted({place for place in places if place != "host_transfer.py"})
    text = f"{len(places)} in {steps} steps"
    if others or len(places) > steps / 64 + 1:
        raise FailedError(f"{text}, of which in other places than host_transfer.py: {others}")
    return text


def check_resume(setup: Setup, model: str) -> str:
    """Stop in training, in validation, and in training of the next epoch."""
    training = setup.training(model)
    stops = training.steps // 3 + 1, training.steps - training.steps // 3, training.steps // 2
    run_apart(train_with_stops, training, setup.folder / f"{model}-stopped", stops)
    return compare(train_reference(setup, model), setup.folder / f"{model}-stopped")


def check_kill(setup: Setup, model: str) -> str:
    """Kill the process in the middle of the second epoch."""
    training, directory = setup.training(model), setup.folder / f"{model}-killed"
    try:
        run_apart(train, training, directory, kill_after=training.steps * 3 // 2 + training.valid_steps)
    except BrokenProcessPool:
        run_apart(train, training, directory)
        return compare(train_reference(setup, model), directory)
    raise FailedError("the process was not killed")


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
    """Train on two ranks, and resume on one device what two have saved, to the loss of one device."""
    if setup.device != "cpu" and run_apart(torch.cuda.device_count) < 2:
        raise SkippedError("needs two devices")
    device = setup.device.partition(":")[0]  # the accelerator with the number of the rank
    training = Training(device, 256 if setup.quick else 16384, "mlp", epochs=3, dropout=0.0)
    one, two = train_to_loss(setup, "mlp"), train_on_two_ranks(training, setup.folder / "ranks")
    train_on_two_ranks(training, setup.folder / "ranks-stopped", stop_after=training.steps // 2)
    resumed = run_apart(train, replace(training, device=setup.device), setup.folder / "ranks-stopped")
    differences = {name: abs(loss / one - 1) for name, loss in (("ranks", two), ("resumed", resumed))}
    if not max(differences.values()) <= tolerance:
        raise FailedError(f"losses differ by {differences} (limit {tolerance})")
    return ", ".join(f"{name} {value:.1e}" for name, value in differences.items())


@functools.cache
def train_to_loss(setup: Setup, model: str, **options: Any) -> float:
    """Return the validation loss after 3 epochs, without dropout, whose masks depend on the precision."""
    samples = 256 if setup.quick else 16384
    training = Training(setup.device, samples, model, epochs=3, dropout=0.0, **options)
    loss: float = run_apart(train, training, Path(tempfile.mkdtemp(dir=setup.folder)))
    return loss


def check_loss(setup: Setup, tolerance: float, **options: Any) -> str:
    """Train with *options*, to a loss that differs by at most *tolerance* from that of eager float32."""
    differences = {}
    for model in ["mlp"] if setup.quick else ["cnn", "mlp"]:
        loss, expected = train_to_loss(setup, model, **options), train_to_loss(setup, model)
        differences[model] = abs(loss / expected - 1)
    text = ", ".join(f"{model} {difference:.3%}" for model, difference in differences.items())
    if not max(differences.values()) <= tolerance:
        raise FailedError(f"the loss differs from that of f32: {text}")
    return f"difference of the loss: {text}"


def check_compilation(setup: Setup) -> str:
    """Train a compiled model."""
    return check_loss(setup, 0.01, compile="eager" if setup.quick else "inductor")


def check_synchronizations(setup: Setup) -> str:
    """Count the host synchronizations of an epoch."""
    setup.require_cuda()
    count = run_apart(count_synchronizations, "learner", "cnn-64", setup.device, quick=setup.quick)
    text = f"{count:.2f} host synchronizations per step"
    if count > 0.05:
        require("stages.data.device_loader", f": {text}")
        raise FailedError(text)
    return text


def check_out_of_memory(setup: Setup) -> str:
    """Train on a batch of a million images."""
    setup.require_cuda()
    command = [sys.executable, "-c", f"import gpu_checks; gpu_checks.exhaust_memory({setup.device!r})"]
    ended = subprocess.run(  # noqa: S603  the interpreter of this process
        command, capture_output=True, text=True, check=False, timeout=PROCESS_LIMIT_SECONDS
    )
    wanted = "the peak was", "batch_size", "gradient_checkpointing", "precision"
    missing = [text for text in wanted if text not in ended.stderr]
    if ended.returncode != 1 or missing or "Traceback" in ended.stderr:
        raise FailedError(f"exit code {ended.returncode}, without {missing}: {ended.stderr[-1000:]}")
    memory = json.loads(ended.stdout)
    if memory["reserved"] > memory["before"] + 2**28:
        raise FailedError(f"memory in use after the error: {memory}")
    return ended.stderr.strip()


def check_sigterm(setup: Setup) -> str:
    """Send SIGTERM in the middle of a step of 2 s."""
    training = Training(setup.device, 640, "mlp")
    directory = setup.folder / "sigterm"
    later, resumed = run_apart(train_slowly, training, directory, 0.2 if setup.quick else 2.0)
    if later > 2 or resumed is None:
        raise FailedError(f"{later} more steps, resumes {resumed}")
    return f"{later} more steps, resumes {resumed}"


CHECKS: dict[str, Callable[[Setup], str]] = {
    "repeat-cnn": partial(check_repetition, model="cnn"),
    "repeat-mlp": partial(check_repetition, model="mlp"),
    "resume-cnn": partial(check_resume, model="cnn"),
    "resume-mlp": partial(check_resume, model="mlp"),
    "kill-cnn": partial(check_kill, model="cnn"),
    "kill-mlp": partial(check_kill, model="mlp"),
    "visible-devices": check_visible_devices,
    "ranks": check_ranks,
    "eager-step": partial(check_variant, name="eager", feature="step", options=(("step", "eager"),)),
    "captured-cnn": partial(check_capture, name="captured-cnn", model="cnn"),
    "captured-adamw": partial(
        check_capture,
        name="captured-adamw",
        optimizer="adamw",
        options=(("grad_clipping", ClipByGlobalNorm(max_norm=0.1)),),
    ),
    "captured-sgd": partial(
        check_capture, name="captured-sgd", optimizer="sgd", options=(("grads_accumulation", 3),)
    ),
    "captured-bf16": partial(check_capture, name="captured-bf16", model="cnn", precision="bf16"),
    "captured-fp16": partial(check_capture, name="captured-fp16", model="cnn", precision="fp16"),
    "captured-compiled": partial(check_capture, name="captured-compiled", compile="inductor"),
    "captured-on-host": partial(check_capture, name="captured-on-host", resident=False),
    "capture-fails": partial(check_capture, name="capture-fails", model="reading"),
    "steps-eager": partial(check_step_synchronizations, kind="eager"),
    "steps-captured": partial(check_step_synchronizations, kind="captured"),
    "data-on-host": partial(check_variant, name="host", feature="stages.devices.prefetcher", resident=False),
    "tf32": partial(check_loss, tolerance=0.01, precision="tf32"),
    "bf16": partial(check_loss, tolerance=0.01, precision="bf16"),
    "fp16": partial(check_loss, tolerance=0.02, precision="fp16"),
    "compile": check_compilation,
    "synchronizations": check_synchronizations,
    "out-of-memory": check_out_of_memory,
    "sigterm": check_sigterm,
}
