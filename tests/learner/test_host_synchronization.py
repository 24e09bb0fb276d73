"""No step of a run on an accelerator waits for it; the values of 64 steps are read in one transfer.

The device `meta` takes long, so most tests read those of `FEW` steps in one.
"""

import pytest
import torch
from host_synchronization import BatchesOnDevice, CountSynchronizations
from long_tests import covering_cases

from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.learner import LearnerBuilder, metering
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import Cnn, Mlp
from stages.optim import Adam, ClipByGlobalNorm, DeviceGuard, NonFiniteError, Sgd
from stages.optim.mixed_precision import MixedPrecision
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer
from stages.runs import FileCheckpointer
from stages.runs.file_names import STEP_FOLDER, list_epochs

FEW = 8
STEPS = 2 * FEW + 4
MODELS = {"cnn": lambda: Cnn((1, 28, 28), 10), "mlp": lambda: Mlp((1, 8, 8), 10)}


def build(directory, model, monkeypatch, clipping=None, optimizer=None):
    monkeypatch.setattr("stages.distributed.rank_group.find_device", torch.device)
    monkeypatch.setattr("stages.optim.optimizers.FUSED_DEVICES", ("cpu", "meta"))
    builder = LearnerBuilder(directory).devices(["meta"]).metrics(LossMetric(), AccuracyMetric()).seed(1)
    builder.renderer(NoRenderer())
    if clipping:
        builder.grad_clipping(clipping)
    return builder.build(model, optimizer or Adam(), 0.1)


CLIPPING = ClipByGlobalNorm(max_norm=1.0)


@pytest.mark.parametrize(
    ("name", "clipping", "pending"), [("mlp", None, 64), ("mlp", CLIPPING, FEW), ("cnn", CLIPPING, FEW)]
)
def test_host_reads_the_device_once_in_64_steps(name, clipping, pending, tmp_path, monkeypatch):
    if pending == FEW:
        monkeypatch.setattr(metering, "MAX_PENDING_BATCHES", FEW)
    shape = {"cnn": (1, 28, 28), "mlp": (1, 8, 8)}[name]
    learner = build(tmp_path, MODELS[name](), monkeypatch, clipping)

    with CountSynchronizations() as counter:
        learner.fit(BatchesOnDevice(shape, pending + 2), BatchesOnDevice(shape, pending - 1))

    in_training, in_validation = (
        2,
        1,
    )  # when the values of `pending` steps are there, and at the end of an epoch
    assert counter.counts == {"device to host": in_training + in_validation + 1}


def test_host_reads_the_device_once_in_64_steps_of_fp16(tmp_path, monkeypatch):
    def build_mixed_precision(precision, device, *, fast_path):
        mixed = MixedPrecision("fp16", device)
        monkeypatch.setattr(mixed, "_device_type", "cpu")  # torch has no autocast for `meta`
        return mixed

    monkeypatch.setattr("stages.learner.run_state.MixedPrecision", build_mixed_precision)
    monkeypatch.setattr(metering, "MAX_PENDING_BATCHES", FEW)
    learner = build(tmp_path, MODELS["mlp"](), monkeypatch)

    with CountSynchronizations() as counter:
        learner.fit(BatchesOnDevice((1, 8, 8), STEPS), BatchesOnDevice((1, 8, 8), STEPS))

    assert type(learner._state.guard) is DeviceGuard
    assert counter.counts == {"device to host": 2 * (STEPS // FEW + 1) + 1}


def test_resident_data_is_copied_to_the_device_once_and_the_order_once_per_epoch(tmp_path, monkeypatch):
    learner = build(tmp_path, MODELS["mlp"](), monkeypatch)
    images = TensorDataset(torch.zeros(4 * STEPS, 1, 8, 8, dtype=torch.uint8), torch.arange(4 * STEPS) % 10)
    builder = DataLoaderBuilder(NormalizeBatcher(3.0, 2.0)).batch_size(4).resident(True)
    valid = builder.build(images)

    with CountSynchronizations() as counter:
        learner.fit(builder.shuffle(1).build(images), valid)

    tensors_of_both_splits, order_of_training = 4, 1
    assert counter.counts["host to device"] == tensors_of_both_splits + order_of_training


class NanAfter(Mlp):
    """A model whose loss is NaN in one batch."""

    def __init__(self, batch):
        torch.manual_seed(1)
        super().__init__((4,), 3)
        self.batch = batch

    def loss(self, logits, targets):
        self.batch -= self.training
        return super().loss(logits, targets) * (float("nan") if self.batch == 0 else 1.0)


def train(directory, bad_batch, optimizer):
    torch.manual_seed(1)
    inputs = torch.randn(100, 8, 4)
    batches = [(each, each[:, :3].argmax(1)) for each in inputs]
    builder = LearnerBuilder(directory).devices(["cpu"]).metrics(LossMetric()).seed(1).renderer(NoRenderer())
    learner = builder.build(NanAfter(bad_batch), optimizer, 0.01)
    with pytest.raises(NonFiniteError) as caught:
        learner.fit(batches, batches)
    weights = {name: value.clone() for name, value in learner.model.state_dict().items()}
    return str(caught.value), weights, (directory / "train/epoch-1/Loss.log").read_text()


OPTIMIZERS = {"adam": Adam(), "sgd with momentum": Sgd(momentum=0.9), "sgd": Sgd()}


@pytest.mark.parametrize(("bad_batch", "optimizer"), covering_cases([2, 65, 100], OPTIMIZERS, strength=1))
def test_guard_on_the_device_leaves_the_error_weights_and_logs_of_the_guard_on_the_host(
    bad_batch, optimizer, tmp_path, monkeypatch
):
    expected = train(tmp_path / "host", bad_batch, optimizer)
    monkeypatch.setattr("stages.learner.run_state._can_check_on_device", lambda *_: True)

    message, weights, lines = train(tmp_path / "device", bad_batch, optimizer)

    assert message == expected[0]
    assert message.startswith(f"epoch 1, batch {bad_batch}: NaN in loss, NaN in")
    assert all(torch.equal(value, expected[1][name]) for name, value in weights.items())
    assert lines == expected[2]
    assert len(lines.splitlines()) == bad_batch - 1


def test_no_checkpoint_follows_a_bad_batch_on_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr("stages.learner.run_state._can_check_on_device", lambda *_: True)
    torch.manual_seed(1)
    batches = [(each, each[:, :3].argmax(1)) for each in torch.randn(20, 8, 4)]
    builder = LearnerBuilder(tmp_path).devices(["cpu"]).metrics(LossMetric()).renderer(NoRenderer())
    builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint_every(steps=4)
    learner = builder.build(NanAfter(11), Adam(), 0.01)

    with pytest.raises(NonFiniteError):
        learner.fit(batches, batches)

    [newest] = list_epochs(tmp_path / STEP_FOLDER)
    steps = FileCheckpointer(tmp_path / STEP_FOLDER, NamedMpkGzFileRecorder(compression=0))
    assert steps.restore(newest).trainer["place"]["iteration"] == 8
