"""Burn can load every written file, as checked by a reader built from the specification alone."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.learner import LearnerBuilder
from stages.metrics import LossMetric
from stages.models import ClassificationStep, Cnn
from stages.optim import (
    AdaGrad,
    Adam,
    AdamW,
    Composed,
    Cosine,
    Exponential,
    Lbfgs,
    Linear,
    Muon,
    RmsProp,
    Scheduler,
    Sgd,
)
from stages.records import (
    HalfPrecision,
    JsonGzFileRecorder,
    NamedMpkFileRecorder,
    NamedMpkGzFileRecorder,
    PrettyJsonFileRecorder,
    record_of,
)
from stages.renderers import NoRenderer

SPEC = importlib.util.spec_from_file_location("serde_reader", Path(__file__).with_name("serde_reader.py"))
serde = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(serde)
CONSTANT, Opt, Param, Struct, Tensor = serde.CONSTANT, serde.Opt, serde.Param, serde.Struct, serde.Tensor

LINEAR = Struct(weight=Param(2), bias=Opt(Param(1)))
PAIR = serde.Array(CONSTANT, 2)
CONV = Struct(
    weight=Param(4),
    bias=Opt(Param(1)),
    stride=PAIR,
    kernel_size=PAIR,
    dilation=PAIR,
    groups=CONSTANT,
    padding=CONSTANT,
)
GATE = Struct(input_transform=LINEAR, hidden_transform=LINEAR)
BATCH_NORM = Struct(
    gamma=Param(1),
    beta=Param(1),
    running_mean=Param(1),
    running_var=Param(1),
    momentum=CONSTANT,
    epsilon=CONSTANT,
)
RMS_NORM = Struct(gamma=Param(1), epsilon=CONSTANT)
LAYER_NORM = Struct(gamma=Param(1), beta=Opt(Param(1)), epsilon=CONSTANT)
ATTENTION = Struct(
    query=LINEAR, key=LINEAR, value=LINEAR, output=LINEAR, d_model=CONSTANT, n_heads=CONSTANT, d_k=CONSTANT
)
MODULES = {
    "linear": (lambda: nn.Linear(3, 2), LINEAR),
    "without bias": (lambda: nn.Linear(3, 2, bias=False), LINEAR),
    "conv": (lambda: nn.Conv2d(1, 2, 3), CONV),
    "embedding": (lambda: nn.Embedding(5, 3), Struct(weight=Param(2))),
    "batch norm": (lambda: nn.BatchNorm2d(2), BATCH_NORM),
    "layer norm": (lambda: nn.LayerNorm(4), LAYER_NORM),
    "batch norm without affine": (lambda: nn.BatchNorm1d(2, affine=False), BATCH_NORM),
    "batch norm without statistics": (lambda: nn.BatchNorm2d(2, track_running_stats=False), BATCH_NORM),
    "layer norm without affine": (lambda: nn.LayerNorm(4, elementwise_affine=False), LAYER_NORM),
    "rms norm without affine": (lambda: nn.RMSNorm(4, elementwise_affine=False), RMS_NORM),
    "group norm": (
        lambda: nn.GroupNorm(2, 4),
        Struct(gamma=Opt(Param(1)), beta=Opt(Param(1)), num_groups=CONSTANT, epsilon=CONSTANT),
    ),
    "rms norm": (lambda: nn.RMSNorm(4), RMS_NORM),
    "lstm": (
        lambda: nn.LSTM(3, 4),
        Struct(input_gate=GATE, forget_gate=GATE, output_gate=GATE, cell_gate=GATE, d_hidden=CONSTANT),
    ),
    "gru": (
        lambda: nn.GRU(3, 4),
        Struct(update_gate=GATE, reset_gate=GATE, new_gate=GATE, d_hidden=CONSTANT),
    ),
    "attention": (lambda: nn.MultiheadAttention(4, 2), ATTENTION),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8),
        Struct(
            mha=ATTENTION,
            pwff=Struct(linear_inner=LINEAR, linear_outer=LINEAR),
            norm_1=LAYER_NORM,
            norm_2=LAYER_NORM,
        ),
    ),
    "list": (lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), serde.Vec(LINEAR)),
}
CNN = Struct(
    conv1=CONV,
    conv2=CONV,
    pool=CONSTANT,
    dropout=CONSTANT,
    linear1=LINEAR,
    linear2=LINEAR,
    activation=CONSTANT,
)
RECORDERS = {
    "mpk": NamedMpkFileRecorder(),
    "mpk.gz": NamedMpkGzFileRecorder(),
    "stored": NamedMpkGzFileRecorder(compression=0),
    "half": NamedMpkGzFileRecorder(HalfPrecision),
    "json": PrettyJsonFileRecorder(),
    "json.gz": JsonGzFileRecorder(),
}
MOMENTUM = {
    "adam": lambda rank: Struct(
        momentum=Struct(time=serde.Int(), moment_1=Tensor(rank), moment_2=Tensor(rank))
    ),
    "sgd": lambda rank: Struct(momentum=Opt(Struct(velocity=Tensor(rank)))),
    "rms_prop": lambda rank: Struct(
        square_avg=Struct(square_avg=Tensor(rank)),
        centered=Struct(grad_avg=Opt(Tensor(rank)), avg=Opt(Tensor(rank))),
        momentum=Opt(Struct(buf=Tensor(rank))),
    ),
    "muon": lambda rank: Struct(momentum=Struct(velocity=Tensor(rank))),
    "ada_grad": lambda rank: Struct(lr_decay=Struct(time=serde.Int(), sum=Tensor(rank))),
}


class Net(ClassificationStep, nn.Sequential):
    """The model that the optimizers of the table train."""


@pytest.mark.parametrize("recorder", RECORDERS.values(), ids=RECORDERS)
@pytest.mark.parametrize(("make", "struct"), MODULES.values(), ids=MODULES)
def test_module_record_equals_that_of_burn_module(make, struct, recorder, tmp_path):
    path = recorder.record(record_of(make()), tmp_path / "model")

    serde.read(path, struct)


def checkpoint(directory, model, optimizer, schedule=None):
    """The folder of the checkpoint after an epoch of two batches."""
    inputs = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(inputs, torch.arange(8) % 3)
    loader = DataLoaderBuilder(NormalizeBatcher()).batch_size(4).build(dataset)
    builder = LearnerBuilder(directory).metrics(LossMetric()).devices(["cpu"]).renderer(NoRenderer())
    builder.with_file_checkpointer(NamedMpkGzFileRecorder())
    builder.build(model, optimizer, Scheduler(0.1, schedule)).fit(loader, loader)
    return directory / "checkpoint"


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [
        (Adam(), "adam"),
        (AdamW(), "adam"),
        (Sgd(momentum=0.9), "sgd"),
        (RmsProp(), "rms_prop"),
        (AdaGrad(), "ada_grad"),
    ],
    ids=lambda each: getattr(each, "kind", each),
)
def test_optimizer_record_has_burn_layout_and_model_ids(optimizer, kind, tmp_path):
    model = Net(nn.Flatten(), nn.Linear(64, 3))

    folder = checkpoint(tmp_path, model, optimizer)

    layers = serde.read(folder / "model-1.mpk.gz", serde.Tuple(CONSTANT, LINEAR))
    states = serde.read(folder / "optim-1.mpk.gz", serde.OptimizerState(MOMENTUM[kind]))
    assert states.keys() == {layers[1]["weight"].id, layers[1]["bias"].id}


@pytest.mark.parametrize(
    ("schedule", "struct"),
    [
        (None, CONSTANT),
        (Linear(final=0.01, num_iters=9), serde.Int()),
        (Cosine(num_iters=9), serde.Int()),
        (Exponential(gamma=0.9), serde.Float()),
        (
            Composed(schedulers=(Linear(final=0.01, num_iters=9), Exponential(gamma=0.9)), reduction="avg"),
            Struct(schedulers=serde.Vec(serde.Enum(Linear=serde.Int(), Exponential=serde.Float()))),
        ),
    ],
    ids=["constant", "linear", "cosine", "exponential", "composed"],
)
def test_scheduler_record_has_burn_layout(schedule, struct, tmp_path):
    folder = checkpoint(tmp_path, Net(nn.Flatten(), nn.Linear(64, 3)), Sgd(), schedule)

    serde.read(folder / "scheduler-1.mpk.gz", struct)


def test_guide_model_record_has_the_fields_of_the_burn_book(tmp_path):
    folder = checkpoint(tmp_path, Cnn((1, 8, 8), 3), Adam())

    record = serde.read(folder / "model-1.mpk.gz", CNN)

    assert record["linear1"]["weight"].tensor.shape == (16 * 8 * 8, 512)


def test_muon_record_has_burn_layout_and_only_matrices(tmp_path):
    folder = checkpoint(tmp_path, Net(nn.Flatten(), nn.Linear(64, 3)), Muon())

    layers = serde.read(folder / "model-1.mpk.gz", serde.Tuple(CONSTANT, LINEAR))
    states = serde.read(folder / "optim-1.mpk.gz", serde.OptimizerState(MOMENTUM["muon"]))
    assert states.keys() == {layers[1]["weight"].id}


def test_lbfgs_record_has_burn_layout(tmp_path):
    folder = checkpoint(tmp_path, Net(nn.Flatten(), nn.Linear(64, 3)), Lbfgs())
    vectors = serde.Vec(Tensor(1))
    state = Struct(
        history_s=vectors,
        history_y=vectors,
        d=Opt(Tensor(1)),
        t=Opt(serde.Float()),
        prev_flat_grad=Opt(Tensor(1)),
        prev_loss=Opt(serde.Float()),
        g_iter=serde.Int(),
    )

    assert serde.read(folder / "optim-1.mpk.gz", state)["d"].shape == (64 * 3 + 3,)


def test_checkpointer_warns_about_fields_that_burn_cannot_load(tmp_path, caplog):
    model = Net(nn.LayerNorm((8, 8)), nn.Flatten(), nn.Linear(64, 3))

    checkpoint(tmp_path, model, Sgd())

    assert caplog.text.count("Burn cannot load 0.gamma") == 1
