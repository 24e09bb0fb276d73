"""A captured step gives the bits of an eager one; a step that cannot be captured is eager, and reported.

On a CPU, a graph is represented by a function that is called again, with results in the same tensors.
"""

import logging
import random
import weakref
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest
import torch
from host_synchronization import BatchesOnDevice, CountSynchronizations
from long_tests import long
from run_files import read_run_files
from stop_after import StopAfter
from torch import nn
from torch.optim import lr_scheduler
from torch.utils._python_dispatch import TorchDispatchMode

from stages.contracts.errors import BuilderError
from stages.contracts.history import Split
from stages.contracts.outputs import ClassificationOutput, is_counted
from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.devices.rng import host_generator_states
from stages.learner import FrozenNorms, LearnerBuilder, Unfreeze, metering
from stages.learner.steps import capture_conditions, cuda_graph, rank_values, step_strategies
from stages.learner.steps.capture_conditions import describe_batch, leaves_of
from stages.metrics import (
    AccuracyMetric,
    AurocMetric,
    LearningRateMetric,
    LossMetric,
    Mean,
    regression,
)
from stages.models import ClassificationStep
from stages.optim import (
    Accumulation,
    Adam,
    AdamW,
    ClipByGlobalNorm,
    Cosine,
    Ema,
    GroupedOptimizer,
    Lbfgs,
    NonFinite,
    NonFiniteError,
    ParameterGroup,
    Scheduler,
    Sgd,
    Swa,
    Window,
)
from stages.optim.gradients import Totals
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer

BATCHES, EPOCHS = 10, 2
MESSAGE = "the training steps of this run are not captured in a CUDA graph: "


class Net(ClassificationStep, nn.Sequential):
    """A model with dropout and running statistics."""

    def __init__(self):
        torch.manual_seed(3)
        layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3)
        super().__init__(*layers)


class Wide(Net):
    """A model in float64 with a parameter without elements."""

    def __init__(self):
        super().__init__()
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.double()

    def forward(self, inputs):
        return super().forward(inputs.double()) + self.empty.sum()


@dataclass(frozen=True)
class MovableOutput(ClassificationOutput):
    """An output with a method ``to``, as tensors have."""

    def to(self, device):
        return replace(self, output=self.output.to(device))


class WithMovableOutput(Net):
    def forward_classification(self, batch):
        item = super().forward_classification(batch)
        return MovableOutput(item.loss, item.output, item.targets, item.weight)


@dataclass(frozen=True)
class MovableBatch:
    """A batch with a method ``to``, as that of a sequence of torch."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def to(self, device):
        return MovableBatch(self.inputs.to(device), self.targets.to(device))


class OfMovableBatches(Net):
    def forward_classification(self, batch):
        return super().forward_classification((batch.inputs, batch.targets))


@dataclass(frozen=True)
class LossSum:
    """The sum of the losses of batches, in the tensor of the output if it is one batch."""

    value: torch.Tensor
    count: int = 1

    def __add__(self, other):
        return LossSum(self.value + other.value, self.count + other.count)


class LossSumMetric:
    name = "Loss Sum"
    unit = None

    def measure(self, output):
        return LossSum(output.loss.detach())


class HitsMetric:
    """A mean that stays on the device, as all means do on an accelerator."""

    name = "Hits"
    unit = None

    def measure(self, output) -> Mean:
        hits = output.output.argmax(1) == output.targets
        return Mean(hits.sum().double(), (output.targets >= 0).sum())


class Allocations(TorchDispatchMode):
    """The tensors that operations allocate, of which `overwrite` overwrites those that are still in use."""

    def __init__(self):
        super().__init__()
        self._tensors = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        passed = {id(leaf) for leaf in leaves_of([*args, *(kwargs or {}).values()])}
        if not function.is_view:
            tensors = (leaf for leaf in leaves_of(results) if isinstance(leaf, torch.Tensor))
            self._tensors += [weakref.ref(tensor) for tensor in tensors if id(tensor) not in passed]
        return results

    def overwrite(self):
        with torch.no_grad():
            for tensor in (each for reference in self._tensors if (each := reference()) is not None):
                tensor.fill_(torch.nan if tensor.is_floating_point() else 1)


class HostEvent:
    """An event of a device that has computed everything at once."""

    def __init__(self, device):
        pass

    def record(self):
        pass

    def synchronize(self):
        pass


class RepeatedCalls:
    """A capturer whose graphs call the captured function again and keep its results in the same tensors."""

    replays = 0
    is_running = False
    """True while a graph runs."""
    error = None
    accepts_no_metrics = False

    def __init__(self, device):
        self.failures = 0
        self.renew()

    def side_stream(self):
        return nullcontext()

    def renew(self):
        self.graphs = []

    def capture(self, run):
        if self.graphs and not any(graph() for graph in self.graphs):
            raise RuntimeError("the pool of the dropped graphs cannot be used again")
        if RepeatedCalls.error and (run.args[0] or not RepeatedCalls.accepts_no_metrics):
            self.failures += 1
            self.renew()
            try:
                raise (
                    RepeatedCalls.error if self.failures == 1 else RuntimeError("error of the second attempt")
                )
            except RuntimeError:
                raise RuntimeError("the capture cannot be ended")  # noqa: B904  as torch.cuda.graph does
        static, allocations = None, Allocations()

        def replay():
            nonlocal static
            RepeatedCalls.replays += 1
            RepeatedCalls.is_running = True
            allocations.overwrite()  # a launch uses the memory of its graph again
            with allocations:
                results = run()
            static = static or results
            with torch.no_grad():
                for old, new in zip(leaves_of(static), leaves_of(results), strict=True):
                    if isinstance(old, torch.Tensor) and old is not new:
                        old.copy_(new)
            RepeatedCalls.is_running = False
            return static

        self.graphs.append(weakref.ref(replay))
        return replay


@pytest.fixture
def capture(monkeypatch):
    """Return a function after which steps on a CPU are captured."""

    def enable(error=None, device="cpu", *, accepts_no_metrics=False):
        monkeypatch.setattr(RepeatedCalls, "accepts_no_metrics", accepts_no_metrics)
        for module in (capture_conditions, cuda_graph):
            monkeypatch.setattr(module, "CAPTURE_DEVICES", (device,))
        if device == "cpu":
            monkeypatch.setattr(rank_values, "ASYNCHRONOUS_DEVICES", (device,))
            monkeypatch.setattr(torch, "Event", HostEvent)
            # the first of the generators is that of this device
            monkeypatch.setattr(cuda_graph, "host_generator_states", lambda: host_generator_states()[1:])
        monkeypatch.setattr(cuda_graph, "RATE_DTYPE", torch.float64)  # which the kernels on a CPU read
        monkeypatch.setattr(cuda_graph, "CudaCapturer", RepeatedCalls)
        monkeypatch.setattr(RepeatedCalls, "replays", 0)
        monkeypatch.setattr(RepeatedCalls, "error", error)
        monkeypatch.setattr("stages.learner.run_state._can_check_on_device", lambda *_: True)

    return enable


def loaders():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(8 * BATCHES - 3, 4, generator=generator)
    builder = DataLoaderBuilder(NormalizeBatcher()).batch_size(8)
    split = TensorDataset(inputs, inputs[:, :3].argmax(1))
    return builder.shuffle(5).build(split), builder.build(
        TensorDataset(split.inputs[:13], split.targets[:13])
    )


def run(
    directory,
    stops=(),
    model=None,
    optimizer=None,
    rate=0.05,
    change=lambda builder: builder,
    kind="auto",
    epochs=EPOCHS,
):
    """Train in *directory*, stopped and resumed after each number of steps in *stops*; return the learner."""
    for stop_after in (*stops, None):
        builder = LearnerBuilder(directory).num_epochs(epochs).seed(1).devices(["cpu"]).step(kind)
        builder.metrics(LossMetric(), AccuracyMetric(), HitsMetric(), AurocMetric(), LearningRateMetric())
        builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto").checkpoint_every(steps=7)
        builder.renderer(StopAfter(builder.interrupter(), stop_after) if stop_after else NoRenderer())
        built = (model or Net)()
        made = optimizer(built) if callable(optimizer) else optimizer or Adam()
        learner = change(builder).build(built, made, rate(made) if callable(rate) else rate)
        learner.fit(*loaders())
    return learner


def in_groups(model):
    first, *others = model.parameters()
    groups = [{"params": [first]}, {"params": others, "lr": 0.01}]
    return torch.optim.Adam(groups, lr=0.05, fused=True)


RUNS = {
    "adam": {},
    "adamw, clipped": {
        "optimizer": AdamW(),
        "change": lambda builder: builder.grad_clipping(ClipByGlobalNorm(max_norm=0.1)),
    },
    "sgd": {"optimizer": Sgd()},
    "sgd with momentum": {"optimizer": Sgd(momentum=0.9)},
    "a schedule": {"rate": lambda _: Scheduler(0.05, Cosine(num_iters=20))},
    "a schedule of torch, two groups": {
        "optimizer": in_groups,
        "rate": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    },
    "two groups": {"optimizer": in_groups},
    "a window, flushed": {"change": lambda builder: builder.grads_accumulation(3)},
    "a window, carried": {"change": lambda builder: builder.grads_accumulation(4, leftover="carry")},
    "a window of sums, dropped": {
        "change": lambda builder: builder.grads_accumulation(2, reduction="sum", leftover="drop")
    },
    "bf16": {"change": lambda builder: builder.precision("bf16")},
    "bf16, a window": {"change": lambda builder: builder.precision("bf16").grads_accumulation(2)},
    "fp16": {"change": lambda builder: builder.precision("fp16")},
    "float64 and an empty parameter": {
        "model": Wide,
        "change": lambda builder: builder.grad_clipping(ClipByGlobalNorm(max_norm=0.1)),
    },
    "float64 and an empty parameter, a window": {
        "model": Wide,
        "optimizer": Sgd(momentum=0.9),
        "change": lambda builder: builder.grads_accumulation(3),
    },
    "averaged over steps": {
        "change": lambda builder: builder.average_weights(Ema(decay=0.9)).grads_accumulation(2)
    },
    "averaged over epochs": {"change": lambda builder: builder.average_weights(Swa(start_epoch=2))},
    "groups with options, some frozen": {
        "optimizer": GroupedOptimizer(
            AdamW(learning_rate=0.05),
            (ParameterGroup(match="biases_and_norms", weight_decay=0.0, learning_rate=0.01),),
            (r"^0\.weight",),
        )
    },
    "compiled": {"change": lambda builder: builder.compile(backend="eager")},
    "hooks": {"change": lambda builder: builder.hooks(Unfreeze(r"^[01]\.", epoch=2), FrozenNorms())},
}


SHORT = ("adam", "sgd", "hooks", "bf16, a window", "averaged over steps", "groups with options, some frozen")
WITH_STATE = ("a window, carried", "fp16")
"""Runs whose checkpoints hold more than weights and moments."""


@pytest.mark.parametrize(
    ("name", "stops"),
    [
        case(name, stops, id=f"{name}-{kind}")
        for name in RUNS
        for kind, stops, case in (
            ("uninterrupted", (), pytest.param if name in SHORT else long),
            ("resumed", (5, 8), pytest.param if name in WITH_STATE else long),
        )
    ],
)
def test_captured_run_equals_eager_run(name, stops, capture, tmp_path):
    run(tmp_path / "eager", **RUNS[name])
    capture()

    run(tmp_path / "captured", stops, **RUNS[name])

    assert read_run_files(tmp_path / "captured") == read_run_files(tmp_path / "eager")
    assert RepeatedCalls.replays > 0


def test_captured_steps_do_not_change_the_batches_of_the_loader(capture, tmp_path):
    capture()
    batches = [MovableBatch(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(8)]
    before = [batch.inputs.clone() for batch in batches]
    builder = LearnerBuilder(tmp_path).devices(["cpu"]).renderer(NoRenderer()).metrics(LossMetric())

    builder.build(OfMovableBatches(), Adam(), 0.1).fit(batches, batches)

    assert RepeatedCalls.replays == 8 - cuda_graph.WARM_UP_STEPS
    assert all(map(torch.equal, before, [batch.inputs for batch in batches]))


def test_output_that_can_be_moved_is_copied_for_a_metric_that_reads_it_later(capture, tmp_path):
    options = {
        "model": WithMovableOutput,
        "change": lambda builder: builder.metrics(LossSumMetric()),
        "epochs": 1,
    }
    run(tmp_path / "eager", **options)
    capture()

    run(tmp_path / "captured", **options)

    assert read_run_files(tmp_path / "captured") == read_run_files(tmp_path / "eager")
    assert RepeatedCalls.replays > 0


@pytest.fixture
def shorten_queue(monkeypatch):
    """Return a function that reads values after 64 / *divisor* batches, and at most 8 / *divisor* later."""

    def shorten(divisor):
        for module in (metering, cuda_graph):
            monkeypatch.setattr(module, "MAX_PENDING_BATCHES", 64 // divisor)
            monkeypatch.setattr(module, "MAX_READ_DELAY", 8 // divisor)

    return shorten


@pytest.mark.parametrize("divisor", [4, long(1)])
def test_values_that_are_read_some_batches_later_equal_those_of_an_eager_run(
    divisor, capture, shorten_queue, tmp_path
):
    """A launch overwrites the results of an earlier one."""
    shorten_queue(divisor)
    batches = 300 // divisor
    inputs = torch.randn(8 * batches, 4, generator=torch.Generator().manual_seed(2))
    loader = (
        DataLoaderBuilder(NormalizeBatcher()).batch_size(8).build(TensorDataset(inputs, inputs.argmax(1) % 3))
    )
    for name in ("eager", "captured"):
        if name == "captured":
            capture()
        builder = LearnerBuilder(tmp_path / name).seed(1).devices(["cpu"]).renderer(NoRenderer())
        builder.metrics(LossMetric(), HitsMetric()).build(Net(), Adam(), 0.05).fit(loader, loaders()[1])

    assert read_run_files(tmp_path / "captured") == read_run_files(tmp_path / "eager")
    assert RepeatedCalls.replays > batches // 2


def test_all_batches_of_the_usual_shape_are_replayed_after_three(capture, tmp_path):
    capture()

    run(tmp_path)

    assert RepeatedCalls.replays == EPOCHS * (BATCHES - 1) - cuda_graph.WARM_UP_STEPS


def test_steps_are_eager_if_asked(capture, tmp_path, caplog):
    capture()

    run(tmp_path, kind="eager")

    assert RepeatedCalls.replays == 0
    assert MESSAGE not in caplog.text


class Counting(Net):
    calls = 0

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs)


class Remembering(Net):
    def forward(self, inputs):
        self.last = super().forward(inputs)
        return self.last


class Rolling(Net):
    def forward(self, inputs):
        return super().forward(inputs) * (1 + 0.1 * random.random())  # noqa: S311  not for secrets


class Hooked(Net):
    def __init__(self):
        super().__init__()
        self[0].register_forward_hook(lambda *_: None)


class Logging(Net):
    def forward(self, inputs):
        self.log_text("shape", str(inputs.shape))
        return super().forward(inputs)


class CountSteps:
    steps = 0

    def after_step(self, context):
        self.steps += 1


class Recurrent(Net):
    def __init__(self):
        super().__init__()
        self.memory = nn.LSTM(3, 3, num_layers=2, dropout=0.5)

    def forward(self, inputs):
        for layer in list(self)[:-1]:
            inputs = layer(inputs)
        return inputs + self.memory(inputs[None])[0][0]


class Updating(Net):
    def optimize(self, optimizer, gradients, rate):
        pass


@dataclass(frozen=True)
class Nameless:
    loss: torch.Tensor
    output: torch.Tensor
    targets: torch.Tensor
    other: object

    @property
    def size(self):
        return len(self.targets)


class Opaque(Net):
    def forward_classification(self, batch):
        item = super().forward_classification(batch)
        return Nameless(item.loss, item.output, item.targets, object())


def with_hook(model):
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


OBSTACLES = {
    "Counting.train_step sets calls": {"model": Counting},
    "Remembering.train_step sets last": {"model": Remembering},
    "Rolling.train_step draws random numbers on the host": {"model": Rolling},
    "Hooked has hooks": {"model": Hooked},
    "Logging.train_step logs numbers or samples": {"model": Logging},
    "after_step of a hook may change": {"change": lambda builder: builder.hooks(CountSteps())},
    "gradient checkpointing reads the random state": {
        "change": lambda builder: builder.gradient_checkpointing()
    },
    "Recurrent has dropout in an LSTM": {"model": Recurrent},
    "Updating has a method optimize": {"model": Updating},
    "LBFGS evaluates a batch several times": {"optimizer": Lbfgs(max_iter=2)},
    "Adam is not updated by a fused kernel": {"change": lambda builder: builder.fast_path("off")},
    "AdamW is not updated by a fused kernel": {
        "optimizer": lambda model: torch.optim.AdamW(model.parameters(), fused=False)
    },
    "Adam is not updated by a fused kernel without hooks": {"optimizer": with_hook},
    "an option of it, besides the rate, changes": {
        "optimizer": lambda model: torch.optim.Adam(model.parameters(), fused=True),
        "rate": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100),
    },
}


@pytest.mark.parametrize(
    ("reason", "kind", "level"),
    [
        case(reason, kind, level, id=f"{reason}-{kind}")
        for number, reason in enumerate(OBSTACLES)
        for kind, level, case in (
            ("auto", logging.INFO, long if number else pytest.param),
            ("captured", logging.WARNING, pytest.param),
        )
    ],
)
def test_step_that_cannot_be_captured_is_reported_once_and_changes_nothing(
    reason, kind, level, capture, tmp_path, caplog
):
    options = OBSTACLES[reason] | {"epochs": 1}
    run(tmp_path / "eager", **options)
    capture()
    caplog.set_level(logging.INFO)

    run(tmp_path / "asked", **options, kind=kind)

    assert read_run_files(tmp_path / "asked") == read_run_files(tmp_path / "eager")
    [line] = [each for each in caplog.records if each.getMessage().startswith(MESSAGE)]
    assert reason in line.getMessage()
    assert line.levelno == level


def test_batch_that_may_be_skipped_is_not_captured(capture, tmp_path, caplog, monkeypatch):
    capture()
    monkeypatch.setattr("stages.learner.run_state._can_check_on_device", lambda *_: False)

    run(tmp_path, change=lambda builder: builder.non_finite(NonFinite(kind="skip")), kind="captured")

    assert f"{MESSAGE}the host decides which batches non_finite skips" in caplog.text


def test_cpu_is_an_obstacle_only_if_a_capture_is_asked_for(tmp_path, caplog):
    run(tmp_path / "auto")
    assert MESSAGE not in caplog.text

    run(tmp_path / "captured", kind="captured")

    assert caplog.text.count(f"{MESSAGE}cpu is not a CUDA device") == 1


@pytest.mark.parametrize("stops", [long((), id="uninterrupted"), pytest.param((4, 5), id="resumed")])
def test_run_continues_eagerly_if_a_capture_fails(stops, capture, tmp_path, caplog):
    run(tmp_path / "eager")
    capture(error=RuntimeError("operation not permitted when stream is capturing\nCUDA"))

    run(tmp_path / "failed", stops)

    assert read_run_files(tmp_path / "failed") == read_run_files(tmp_path / "eager")
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    failure = "the capture failed: RuntimeError: operation not permitted when stream is capturing"
    assert lines == [MESSAGE + failure] * (1 + len(stops))


@pytest.mark.parametrize(
    "options", [long({}, id="each batch"), pytest.param(RUNS["a window, flushed"], id="a window")]
)
def test_metric_that_cannot_be_captured_is_measured_outside_the_graph(options, capture, tmp_path, caplog):
    run(tmp_path / "eager", **options)
    capture(error=RuntimeError("operation not permitted"), accepts_no_metrics=True)

    run(tmp_path / "captured", **options)

    assert read_run_files(tmp_path / "captured") == read_run_files(tmp_path / "eager")
    assert RepeatedCalls.replays > 0
    assert MESSAGE not in caplog.text


def test_item_that_cannot_be_copied_is_not_captured(capture, tmp_path):
    capture()
    builder = LearnerBuilder(tmp_path).devices(["cpu"]).renderer(NoRenderer()).metrics(LossMetric())

    with pytest.raises(ValueError, match="Nameless is not a dataclass of tensors"):
        builder.build(Opaque(), Adam(), 0.1).fit(*loaders())  # a graph raises this when it is captured


class Freezing(Net):
    """A model whose first layer is frozen after the first epoch."""

    def valid_step(self, batch):
        self[0].requires_grad_(False)
        return super().valid_step(batch)


@pytest.mark.parametrize("min_replays", [1, long(100)])
def test_model_that_changes_between_epochs_is_captured_again_or_not_at_all(
    min_replays, capture, tmp_path, monkeypatch
):
    run(tmp_path / "eager", model=Freezing)
    capture()
    monkeypatch.setattr(cuda_graph, "MIN_REPLAYS", min_replays)

    run(tmp_path / "captured", model=Freezing)

    assert read_run_files(tmp_path / "captured") == read_run_files(tmp_path / "eager")
    first = BATCHES - 1 - cuda_graph.WARM_UP_STEPS
    assert RepeatedCalls.replays == (first if min_replays > 1 else 2 * first)


class NanAfter(Net):
    def loss(self, logits, targets):
        return super().loss(logits, targets) / (targets != 7).all()


@pytest.mark.parametrize(
    ("divisor", "bad_batch"),
    [*((4, batch) for batch in (2, 7, 16, 17, 18, 19, 25))]
    + [long(1, batch) for batch in (2, 7, 64, 65, 70, 73, 98)],
)
@pytest.mark.parametrize("accumulated", [1, 3])
def test_captured_guard_reports_the_bad_batch(
    divisor, bad_batch, accumulated, capture, shorten_queue, tmp_path
):
    """Batches 65 to 72, or 17 and 18, run before the values of those before them are read."""
    capture()
    shorten_queue(divisor)
    batches = [(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(104 // divisor)]
    batches[bad_batch - 1] = (torch.full((8, 4), torch.inf), torch.arange(8) % 3)
    builder = LearnerBuilder(tmp_path).devices(["cpu"]).renderer(NoRenderer()).metrics(LossMetric())
    learner = builder.grads_accumulation(accumulated).build(Net(), Adam(), 0.1)

    with pytest.raises(NonFiniteError, match=f"epoch 1, batch {bad_batch}: NaN in loss"):
        learner.fit(batches, batches[:1])

    assert len((tmp_path / "train/epoch-1/Loss.log").read_text().splitlines()) == bad_batch - 1


def test_batches_of_many_shapes_are_reported_after_an_epoch(capture, tmp_path, caplog):
    capture()
    batches = [(torch.randn(size, 4), torch.arange(size) % 3) for size in range(1, 81)]
    builder = LearnerBuilder(tmp_path).devices(["cpu"]).renderer(NoRenderer()).num_epochs(2)
    model = Net()
    model[1] = nn.Identity()

    builder.step("captured").metrics(LossMetric()).build(model, Adam(), 0.1).fit(batches, batches)

    assert caplog.text.count(f"{MESSAGE}too few batches have the same shape") == 1


def test_batches_of_two_shapes_are_captured_when_one_is_repeated(capture, tmp_path):
    capture()
    sizes = [5, 8, 8, 8, 8, 8, 5, 8]
    batches = [(torch.randn(size, 4), torch.arange(size) % 3) for size in sizes]
    builder = LearnerBuilder(tmp_path).devices(["cpu"]).renderer(NoRenderer()).metrics(LossMetric())

    builder.build(Net(), Adam(), 0.1).fit(batches, batches)

    assert RepeatedCalls.replays == 2, "the first 8 is unusual, three warm up, and 5 is eager"


@pytest.mark.parametrize("accumulated", [1, long(3)])
def test_replayed_step_does_not_wait_for_the_device(accumulated, capture, tmp_path, monkeypatch):
    capture(device="meta")
    monkeypatch.setattr("stages.distributed.rank_group.find_device", torch.device)
    monkeypatch.setattr("stages.optim.optimizers.FUSED_DEVICES", ("cpu", "meta"))
    builder = LearnerBuilder(tmp_path).devices(["meta"]).metrics(LossMetric(), AccuracyMetric()).seed(1)
    builder.grads_accumulation(accumulated).grad_clipping(ClipByGlobalNorm(max_norm=1.0))
    learner = builder.renderer(NoRenderer()).build(Net(), Adam(), 0.1)

    steps, pending = 20, 8
    for module in (metering, cuda_graph):
        monkeypatch.setattr(module, "MAX_PENDING_BATCHES", pending)

    with CountSynchronizations() as counter:
        learner.fit(BatchesOnDevice((4,), steps), BatchesOnDevice((4,), 1))

    assert RepeatedCalls.replays == steps - cuda_graph.WARM_UP_STEPS
    in_training, in_validation = steps // pending + 1, 1
    assert counter.counts == {"device to host": in_training + in_validation + 1}


def test_means_on_the_device_are_measured_in_the_graph(capture, tmp_path, monkeypatch):
    capture()
    measured = set()
    keep = cuda_graph.Results
    monkeypatch.setattr(
        cuda_graph, "Results", lambda *args, **named: measured.update(*named["means"]) or keep(*args, **named)
    )

    run(tmp_path)

    assert measured == {"Hits"}


class CountLaunches(TorchDispatchMode):
    """Counts the operations on the device `meta` outside of graphs, by name; views launch none."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in leaves_of(results) if isinstance(leaf, torch.Tensor) and leaf.is_meta]
        if tensors and not function.is_view and not RepeatedCalls.is_running:
            self.counts[function.overloadpacket.__name__] += 1
        return results


def count_launches(directory, steps):
    """Return the launches outside of graphs in an epoch of *steps* steps on resident data."""
    split = TensorDataset(torch.zeros(4 * steps, 4), torch.zeros(4 * steps, dtype=torch.int64))
    loader = DataLoaderBuilder(NormalizeBatcher()).batch_size(4).shuffle(1).resident(resident=True)
    builder = LearnerBuilder(directory).devices(["meta"]).metrics(LossMetric(), LearningRateMetric()).seed(1)
    learner = builder.renderer(NoRenderer()).build(Net(), Adam(), 0.1)
    with CountSynchronizations(), CountLaunches() as counter:
        learner.fit(loader.build(split), BatchesOnDevice((4,), 1))
    return counter.counts


def test_step_on_resident_data_launches_a_copy_of_its_indices_and_the_graph(capture, tmp_path, monkeypatch):
    """The run's own metrics, such as the learning rate, read no output, so that it is not copied for them."""
    capture(device="meta")
    monkeypatch.setattr("stages.distributed.rank_group.find_device", torch.device)
    monkeypatch.setattr("stages.optim.optimizers.FUSED_DEVICES", ("cpu", "meta"))

    few, many = (count_launches(tmp_path / str(steps), steps) for steps in (10, 20))

    assert many - few == {"copy_": 10}


def test_unknown_kind_of_step_is_refused(tmp_path):
    with pytest.raises(BuilderError, match=r"step\('graph'\): use one of auto, eager, captured"):
        LearnerBuilder(tmp_path).step("graph")


@pytest.mark.parametrize(
    "other", [[1], (1, 2), {"a": 1}, object(), torch.zeros(2), (torch.zeros(3, 2).T,), 1.5]
)
def test_batches_are_alike_only_if_structure_constants_and_layouts_are_equal(other, capture):
    capture()
    batch = (torch.zeros(2, 3),)

    assert describe_batch(batch) == describe_batch((torch.ones(2, 3),))
    assert describe_batch(other) != describe_batch(batch)
    assert isinstance(other, torch.Tensor | int | float | list | tuple | dict) == (
        describe_batch(other) == describe_batch(other)
    )


@pytest.mark.parametrize(
    ("device", "build"),
    [
        ("meta", lambda: torch.zeros(2)),  # on the host
        ("cpu", lambda: torch.eye(2).to_sparse()),
        ("cpu", lambda: torch.eye(2).to_sparse_csr()),
        ("cpu", lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
        ("cpu", lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)),
    ],
    ids=["on the host", "sparse", "compressed", "nested", "jagged"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested tensors")
def test_batch_with_a_tensor_whose_shape_does_not_describe_it_is_equal_to_no_other(device, build, capture):
    """A launch reads the memory of the first batch, and repeats what the values of a host tensor selected."""
    capture(device=device)
    batch = (torch.zeros(2, device=device), build())

    assert describe_batch(batch) != describe_batch(batch)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("value", [-0.0, 0.0, 1.0])
def test_window_on_the_device_has_the_bits_of_one_on_the_host(reduction, value):
    gradients = [torch.tensor([value, -3.0]), None, torch.tensor([value], dtype=torch.bfloat16)]
    on_host, on_device = (Window.of(Accumulation(batches=2, reduction=reduction)) for _ in range(2))
    totals = Totals(gradients, 3)

    for _ in range(2):
        on_host.add(gradients, 3)
        on_device.add_on_device(totals, gradients, 3)
    expected, found = on_host.take(), on_device.take_on_device(totals)

    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or (ours.dtype, ours.float().view(torch.int32).tolist()) == (
            theirs.dtype,
            theirs.float().view(torch.int32).tolist(),
        )


def train_on_ignored_targets(directory, window, leftover, kind):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(12, 8, 4, generator=generator)
    targets = inputs[:, :, :3].argmax(2)
    targets[torch.rand(targets.shape, generator=generator) < 0.5] = -100
    targets[[5, 7, 8, 9]] = -100  # a batch, and a window of three, that count nothing
    batches = [*zip(inputs, targets, strict=True)]
    builder = LearnerBuilder(directory).num_epochs(2).seed(1).devices(["cpu"]).step(kind)
    builder.metrics(LossMetric(), AccuracyMetric()).renderer(NoRenderer())
    builder.grads_accumulation(window, leftover=leftover)
    learner = builder.build(Net(), Sgd(momentum=0.9), 0.05)
    learner.fit(batches, batches)
    values = [learner.history.value(2, split, "Loss") for split in Split]
    return torch.cat([each.detach().flatten() for each in learner.model.parameters()]), values


@pytest.mark.parametrize(("window", "leftover"), [(1, "flush"), (2, "carry"), (3, "flush"), (5, "flush")])
def test_captured_step_reads_weights_on_the_device(window, leftover, capture, tmp_path, monkeypatch):
    weights, values = train_on_ignored_targets(tmp_path / "eager", window, leftover, "eager")
    capture()
    for module in (step_strategies, regression):  # a weight that is a tensor, as on an accelerator
        monkeypatch.setattr(module, "weight_of", lambda item: is_counted(item.targets).sum())

    found, found_values = train_on_ignored_targets(tmp_path / "captured", window, leftover, "captured")

    assert RepeatedCalls.replays > 12
    torch.testing.assert_close(found, weights, rtol=1e-6, atol=1e-6)
    assert found_values == pytest.approx(values, rel=1e-6)
