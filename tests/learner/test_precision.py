"""Training in half precision: weights, records and resumes are those of float32 training."""

import pytest
import torch
from long_tests import long
from stop_after import StopAfter
from torch import nn

from stages.contracts.errors import BuilderError, CheckpointError
from stages.contracts.outputs import TrainOutput
from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import ClassificationStep
from stages.optim import Adam, DeviceGuard, Guard, NonFiniteError, Sgd
from stages.optim.mixed_precision import INITIAL_SCALE, LossScaler, MixedPrecision
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer
from stages.runs import FileCheckpointer

HALF = ["bf16", "fp16"]
CPU = torch.device("cpu")


class Net(ClassificationStep, nn.Sequential):
    """A user's model: nothing in it depends on the precision."""

    def __init__(self):
        torch.manual_seed(1)
        super().__init__(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))


class ThreeLines(ClassificationStep, nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))


class Steep(Net):
    """A model whose gradients overflow in fp16 until the scale has been halved several times."""

    def loss(self, logits, targets):
        return super().loss(logits, targets) * 1000


class Manual(Net):
    """A model that calls ``loss.backward()`` itself."""

    def train_step(self, batch):
        item = self.forward_classification(batch)
        item.loss.backward()
        return TrainOutput(self, [each.grad for each in self.parameters()], item)


def loaders():
    inputs = torch.randn(400, 6, generator=torch.Generator().manual_seed(1))
    builder = DataLoaderBuilder(NormalizeBatcher()).batch_size(32)
    split = TensorDataset(inputs, inputs[:, :3].argmax(1))
    return builder.shuffle(1).build(split), builder.build(split)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
@pytest.mark.parametrize("weights", [(1.0, 10.0, 0.3), (0.0, 10.1, 0.3)])
def test_class_weights_keep_their_digits_in_half_precision(tmp_path, precision, dtype, weights):
    """A loop of PyTorch with autocast has the same weights: its loss is in float32."""
    torch.manual_seed(1)
    batches = [(torch.randn(6, 6), torch.arange(6) % 3)] * 3
    ours, theirs = ThreeLines(), ThreeLines()
    theirs.load_state_dict(ours.state_dict())
    ours.configure_loss(class_weights=weights)
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1)

    builder = LearnerBuilder(tmp_path).metrics(LossMetric()).devices(["cpu"]).renderer(NoRenderer())
    builder.precision(precision).build(ours, torch.optim.SGD(ours.parameters(), 0.1), 0.1).fit(
        batches, batches
    )
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = nn.functional.cross_entropy(theirs(inputs), targets, torch.tensor(weights))
        loss.backward()
        optimizer.step()

    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-6, atol=1e-7)


def train(directory, precision, model=None, stop_after=None, epochs=3, optimizer=None, batches_per_update=1):
    builder = LearnerBuilder(directory).num_epochs(epochs).seed(1).devices(["cpu"]).precision(precision)
    builder.grads_accumulation(batches_per_update)
    builder.metrics(LossMetric(), AccuracyMetric()).with_file_checkpointer(NamedMpkGzFileRecorder())
    builder.checkpoint("auto")
    builder.renderer(StopAfter(builder.interrupter(), stop_after) if stop_after else NoRenderer())
    learner = builder.build(model or Net(), *(optimizer or (Adam(), 0.01)))
    learner.fit(*loaders())
    return learner


def stored_scale(directory, epoch):
    """Return the state of the loss scaler in the checkpoint of *epoch*."""
    checkpoint = FileCheckpointer(directory / "checkpoint", NamedMpkGzFileRecorder()).restore(epoch)
    return checkpoint.trainer["scaler"]


def valid_loss(learner):
    return learner.history.value(3, "valid", "Loss")


@pytest.mark.parametrize("precision", HALF)
def test_loss_in_half_precision_is_within_one_percent_of_float32(precision, tmp_path):
    full, half = train(tmp_path / "f32", "f32"), train(tmp_path / "half", precision)

    assert valid_loss(half) == pytest.approx(valid_loss(full), rel=0.01)
    assert valid_loss(half) != valid_loss(full), "computed in half precision"


@pytest.mark.parametrize("precision", ["f32", *HALF])
def test_a_model_of_three_lines_trains_in_every_precision(precision, tmp_path):
    torch.manual_seed(1)

    learner = train(tmp_path, precision, ThreeLines())

    assert valid_loss(learner) < 0.6, "it was 1.1 before training"


@pytest.mark.parametrize("precision", HALF)
def test_weights_optimizer_state_and_records_are_float32(precision, tmp_path):
    learner = train(tmp_path, precision)

    checkpoint = FileCheckpointer(tmp_path / "checkpoint", NamedMpkGzFileRecorder()).restore(3)
    for stored in (checkpoint.model, checkpoint.optim):
        leaves = torch.utils._pytree.tree_leaves(stored)
        assert {each.dtype for each in leaves if isinstance(each, torch.Tensor)} == {torch.float32}
    assert {each.dtype for each in learner.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("stop_after", [long(3), 13, long(20)])
def test_resumed_run_equals_uninterrupted_run(precision, stop_after, tmp_path):
    train(tmp_path / "uninterrupted", precision)

    train(tmp_path / "resumed", precision, stop_after=stop_after)
    train(tmp_path / "resumed", precision)

    assert files(tmp_path / "resumed") == files(tmp_path / "uninterrupted")


@pytest.mark.parametrize("stop_after", [3, 20])
def test_resumed_run_continues_with_the_scale_after_overflows(stop_after, tmp_path):
    train(tmp_path / "uninterrupted", "fp16", Steep())

    train(tmp_path / "resumed", "fp16", Steep(), stop_after=stop_after)
    train(tmp_path / "resumed", "fp16", Steep())

    scale = stored_scale(tmp_path / "resumed", 3)
    assert 1 < scale["scale"] < INITIAL_SCALE
    assert scale == stored_scale(tmp_path / "uninterrupted", 3)
    assert files(tmp_path / "resumed") == files(tmp_path / "uninterrupted")


def files(directory):
    paths = [path for path in sorted(directory.rglob("*")) if path.suffix in {".gz", ".log"}]
    names = [path.relative_to(directory).as_posix() for path in paths]
    kept = zip(names, paths, strict=True)
    return {name: path.read_bytes() for name, path in kept if name.startswith(("checkpoint", "train", "val"))}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_forward_is_in_half_precision_and_gradients_are_float32(precision):
    mixed, model = MixedPrecision(precision, CPU), Net()

    with mixed.autocast():
        logits = model(torch.ones(2, 6))
        mixed.run_backward(logits.float().sum(), tuple(model.parameters()))

    assert logits.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert {each.grad.dtype for each in model.parameters()} == {torch.float32}


def test_gradients_in_fp16_are_those_of_the_unscaled_loss():
    weight = nn.Parameter(torch.tensor([3.0]))

    MixedPrecision("fp16", CPU).run_backward((weight * 2.0).sum(), [weight])

    assert weight.grad.tolist() == [2.0]


def test_an_overflow_in_fp16_leaves_out_the_update_and_halves_the_scale():
    scaler, weight = LossScaler(CPU), nn.Parameter(torch.tensor([1.0]))

    scaler.begin_step()
    scaler.run_backward((weight * 1e35).sum(), [weight])

    assert scaler.absorb_overflow()
    assert scaler.state_dict() == {"scale": INITIAL_SCALE / 2, "growth": 0}


def test_an_overflow_at_a_scale_of_one_is_an_error_of_the_batch():
    scaler, weight = LossScaler(CPU), nn.Parameter(torch.tensor([1.0]))
    scaler.load_state_dict({"scale": 1.0, "growth": 0})

    scaler.run_backward((weight * float("inf")).sum(), [weight])

    assert not scaler.absorb_overflow()
    assert scaler.state_dict()["scale"] == 1.0


def test_the_scale_grows_after_2000_steps_without_an_overflow():
    scaler, weight = LossScaler(CPU), nn.Parameter(torch.tensor([1.0]))
    scaler.load_state_dict({"scale": 8.0, "growth": 1999})

    scaler.run_backward(weight.sum(), [weight])

    assert not scaler.absorb_overflow()
    assert scaler.state_dict() == {"scale": 16.0, "growth": 0}


class LossOverflow(Net):
    """A model whose first batches overflow in fp16 until the scale is small enough."""

    def loss(self, logits, targets):
        return super().loss(logits, targets) * 1e33


def test_a_run_continues_after_an_overflow_and_logs_its_batch(tmp_path):
    learner = train(tmp_path, "fp16", LossOverflow(), epochs=1)

    rows = (tmp_path / "train/epoch-1/Loss.log").read_text().splitlines()
    assert len(rows) == 13, "one per batch"
    assert learner.epoch == 1
    assert not any(each.isnan().any() for each in learner.model.parameters())


class Overflow(Net):
    """A model whose gradients overflow in fp16 in the batches *overflowing*."""

    def __init__(self, *overflowing):
        super().__init__()
        self.overflowing, self.batch = overflowing, 0

    def loss(self, logits, targets):
        self.batch += self.training
        return super().loss(logits, targets) * (
            1e37 if self.training and self.batch in self.overflowing else 1
        )


def test_an_overflowing_batch_changes_no_weight_and_halves_the_scale(tmp_path):
    model = Overflow(*range(1, 14))
    before = [each.detach().clone() for each in model.parameters()]

    train(tmp_path, "fp16", model, epochs=1)

    assert all(map(torch.equal, model.parameters(), before))
    assert stored_scale(tmp_path, 1) == {"scale": INITIAL_SCALE / 2**13, "growth": 0}


OPTIMIZERS = {
    "adam": (Adam(), 0.01),
    "sgd": (Sgd(), 0.1),
    "momentum": (Sgd(momentum=0.9, dampening=0.0), 0.01),
    "dampening": (Sgd(momentum=0.9, dampening=0.1), 0.01),
}


@pytest.mark.parametrize("overflowing", [(1, 2, 7), long((13, 14, 26))])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_overflows_on_the_device_give_the_files_of_overflows_on_the_host(
    optimizer, overflowing, tmp_path, monkeypatch
):
    train(tmp_path / "host", "fp16", Overflow(*overflowing), optimizer=OPTIMIZERS[optimizer])
    monkeypatch.setattr("stages.learner.run_state._can_check_on_device", lambda *_: True)

    learner = train(tmp_path / "device", "fp16", Overflow(*overflowing), optimizer=OPTIMIZERS[optimizer])

    assert type(learner._state.guard) is DeviceGuard
    assert files(tmp_path / "device") == files(tmp_path / "host")
    assert stored_scale(tmp_path / "device", 3) == {
        "scale": INITIAL_SCALE / 8,
        "growth": 39 - overflowing[-1],
    }


def test_overflows_within_an_accumulated_update_are_handled_on_the_host(tmp_path, monkeypatch):
    train(tmp_path / "host", "fp16", Overflow(1, 2, 7), batches_per_update=2)
    monkeypatch.setattr("stages.learner.run_state._can_check_on_device", lambda *_: True)

    learner = train(tmp_path / "device", "fp16", Overflow(1, 2, 7), batches_per_update=2)

    assert type(learner._state.guard) is Guard
    assert files(tmp_path / "device") == files(tmp_path / "host")


@pytest.mark.parametrize("overflowing", [(), (4,), (5,)])
def test_error_in_fp16_on_the_device_is_that_on_the_host(overflowing, tmp_path, monkeypatch):
    class Broken(Overflow):
        def loss(self, logits, targets):
            loss = super().loss(logits, targets)
            return loss * (float("nan") if self.batch == 5 else 1)

    with pytest.raises(NonFiniteError, match="epoch 1, batch 5: NaN in loss") as expected:
        train(tmp_path / "host", "fp16", Broken(*overflowing))
    monkeypatch.setattr("stages.learner.run_state._can_check_on_device", lambda *_: True)

    with pytest.raises(NonFiniteError) as caught:
        train(tmp_path / "device", "fp16", Broken(*overflowing))

    assert str(caught.value) == str(expected.value)


def test_nan_in_the_loss_stops_the_run_in_fp16_too(tmp_path):
    class Broken(Net):
        def loss(self, logits, targets):
            return super().loss(logits, targets) * float("nan")

    with pytest.raises(NonFiniteError, match="epoch 1, batch 1: NaN in loss"):
        train(tmp_path, "fp16", Broken())


def test_a_model_that_calls_backward_itself_trains_in_bf16_and_is_refused_in_fp16(tmp_path):
    train(tmp_path / "bf16", "bf16", Manual(), epochs=1)

    with pytest.raises(BuilderError, match=r"Manual.train_step calls loss.backward\(\) itself"):
        train(tmp_path / "fp16", "fp16", Manual(), epochs=1)


def test_unknown_precision_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(BuilderError, match="use one of f32, tf32, bf16, fp16"):
        LearnerBuilder(tmp_path).precision("f16")


def test_state_of_another_kind_is_refused_by_the_scaler():
    with pytest.raises(CheckpointError, match="'scale' and 'growth'"):
        LossScaler(CPU).load_state_dict({"scale": "large"})
