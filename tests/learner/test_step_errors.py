"""A batch that does not fit the model is explained by layer, shapes, dtypes and labels, not by internals."""

import traceback

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import DataLoader, TensorDataset

from stages.contracts.errors import BuilderError
from stages.contracts.user_code import explain
from stages.data import TensorDataset as ResidentDataset
from stages.learner import EvaluatorBuilder, LearnerBuilder
from stages.loggers import InMemoryMetricLogger
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import ClassificationStep, RegressionStep
from stages.optim import Adam, Linear
from stages.records import DefaultRecorder
from stages.renderers import NoRenderer
from stages.runs import KeepLast, MetricEarlyStopping

INPUTS = torch.arange(32.0).reshape(8, 4)
LABELS = torch.arange(8) % 3
PLACE = r"(train|valid)_step \(.*test_step_errors\.py, line \d+\): "


class Net(ClassificationStep, nn.Sequential):
    pass


class Regressor(RegressionStep, nn.Sequential):
    loss = staticmethod(nn.HuberLoss())


class Own(nn.Module):
    """A model whose steps are in the user's file."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def train_step(self, batch):
        return cross_entropy(self.layers(batch[0]), batch[1])

    valid_step = train_step


def layers(*first, inputs=4, outputs=3):
    return [*first, nn.Linear(inputs, 5), nn.ReLU(), nn.Linear(5, outputs)]


IMAGES = torch.zeros(8, 1, 6, 6)
MISTAKES = {
    "inputs of a linear layer": (layers(inputs=3), INPUTS, LABELS, "layer 0 has in_features=3, .* has 4"),
    "inputs of a later layer": (
        layers(nn.Flatten(), nn.Linear(36, 7)),
        IMAGES,
        LABELS,
        r"layer 2 has in_features=4, and its input \(8, 7\) has 7. Create it with in_features=7",
    ),
    "channels": (layers(nn.Conv2d(3, 4, 3)), IMAGES, LABELS, "the layer 0 has in_channels=3, .* has 1"),
    "features of a batch norm": (
        layers(nn.BatchNorm1d(2)),
        INPUTS,
        LABELS,
        "layer 0 has num_features=2, .* has 4",
    ),
    "inputs of a recurrent layer": (
        [nn.GRU(3, 5)],
        INPUTS,
        LABELS,
        "the layer 0 has input_size=3, .* has 4",
    ),
    "too few outputs": (
        layers(),
        INPUTS,
        torch.arange(8),
        "largest label is 7, and the model has 3 outputs, for labels up to 2. Give it at least 8 outputs",
    ),
    "labels from -1": (layers(), INPUTS, LABELS - 1, "the smallest label is -1. Number the labels from 0"),
    "float64 inputs": (
        layers(),
        INPUTS.double(),
        LABELS,
        r"the input of the layer 0 is float64, and it takes float32. Convert it with .to\(torch.float32\)",
    ),
    "float64 images": (layers(nn.Conv2d(1, 4, 3)), IMAGES.double(), LABELS, "the layer 0 is float64"),
    "uint8 inputs": (layers(), INPUTS.to(torch.uint8), LABELS, "the layer 0 is uint8, and it takes float32"),
    "numpy inputs": (layers(), INPUTS.numpy(), LABELS, "layer 0 takes tensors; found a numpy array"),
    "int32 labels": (layers(), INPUTS, LABELS.int(), r"the labels are int32, .* Convert them with .long\(\)"),
    "float labels": (layers(), INPUTS, LABELS.float(), "the labels are float32, and the loss takes int64"),
    "a column of labels": (layers(), INPUTS, LABELS[:, None], r"shape \(8, 1\), .* with .squeeze\(-1\)"),
    "one-hot integers": (layers(), INPUTS, one_hot(LABELS), r"shape \(8, 3\), .* .argmax\(1\)"),
    "no dimension of classes": (
        [nn.Linear(4, 1), nn.Flatten(0)],
        INPUTS,
        LABELS,
        r"outputs \(8,\); the loss takes a row of outputs per label",
    ),
    "fewer labels": (layers(), INPUTS, LABELS[:4], r"labels have the shape \(4,\), and the outputs \(8, 3\)"),
    "index above a table": (
        layers(nn.Embedding(9, 1), nn.Flatten()),
        INPUTS.long(),
        LABELS,
        "largest index is 31, and the layer 0 has num_embeddings=9. Create it with num_embeddings=32",
    ),
    "index below 0": (layers(nn.Embedding(32, 1)), INPUTS.long() - 1, LABELS, "the smallest index is -1"),
    "floats as indices": (
        layers(nn.Embedding(9, 1)),
        INPUTS,
        LABELS,
        'the layer 0 is float32, .* int64. Give it the kind "tokens" in Arrays, which is never normalized',
    ),
    "one sample in a batch norm": (
        [nn.BatchNorm1d(4), nn.Linear(4, 3)],
        INPUTS[:1],
        LABELS[:1],
        r"Expected more than 1 value.*\n.*in the layer 0, BatchNorm1d\(.*\), batch_norm: input \(1, 4\)",
    ),
}


def learner(model, directory, *metrics):
    builder = LearnerBuilder(directory).renderer(NoRenderer()).devices(["cpu"]).metrics(*metrics)
    return builder.build(model, Adam(), 0.1)


def evaluator(model, directory):
    return EvaluatorBuilder(directory).renderer(NoRenderer()).device("cpu").build(model)


def train(model, batch, directory):
    learner(model, directory).fit([batch])


def validate(model, batch, directory):
    """Train on no sample of *batch*, whose first validation fails."""
    builder = LearnerBuilder(directory).renderer(NoRenderer()).devices(["cpu"]).sanity_check(1)
    builder.build(model, Adam(), 0.1).fit([batch], [batch])


def evaluate(model, batch, directory):
    evaluator(model, directory).eval("x", [batch])


DOORS = {"fit": train, "validation": validate, "evaluator": evaluate}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize(("modules", "inputs", "labels", "message"), MISTAKES.values(), ids=MISTAKES)
def test_batch_that_does_not_fit_is_explained(modules, inputs, labels, message, door, tmp_path):
    model = Net(*modules)
    if isinstance(modules[0], nn.BatchNorm1d) and len(inputs) == 1 and door is not train:
        pytest.skip("a batch norm takes one sample in evaluation mode")

    with pytest.raises(BuilderError, match=PLACE + f"(.*){message}") as raised:
        door(model, (inputs, labels), tmp_path)

    text = str(raised.value)
    assert f"batch: inputs {tuple(inputs.shape)} {str(inputs.dtype).removeprefix('torch.')}" in text
    assert len(text.splitlines()) <= 4
    assert "torch/nn" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_dtype_that_only_the_backward_pass_rejects_is_named(dtype, tmp_path):
    targets = INPUTS[:, :1].to(getattr(torch, dtype))

    with pytest.raises(
        BuilderError, match=f"part targets of the batch is {dtype}, and the model computes in"
    ):
        train(Regressor(nn.Linear(4, 1)), (INPUTS, targets), tmp_path)


def test_error_with_a_frame_of_the_user_keeps_its_type_and_has_the_same_facts_as_a_note(tmp_path):
    with pytest.raises(RuntimeError, match="mat1 and mat2") as raised:
        train(Own(nn.Sequential(*layers(inputs=3))), (INPUTS, LABELS), tmp_path)

    lines = explain(raised.value).splitlines()
    assert any("test_step_errors.py" in line and "in train_step" in line for line in lines)
    assert "  the layer layers.0 has in_features=3, and its input (8, 4) has 4" in "\n".join(lines)
    assert lines[-1] == "  batch: inputs (8, 4) float32, targets (8,) int64 from 0 to 2"


class Mapped(Net):
    def train_step(self, batch):
        return super().train_step((batch["pixels"]["left"], batch["label"]))


def test_parts_of_a_batch_have_the_names_of_its_keys(tmp_path):
    batch = {"pixels": {"left": INPUTS, "right": np.zeros((8, 2))}, "label": LABELS}

    with pytest.raises(RuntimeError) as raised:
        train(Mapped(*layers(inputs=3)), batch, tmp_path)

    assert (
        "batch: pixels.left (8, 4) float32, pixels.right (8, 2) float64 (numpy), label (8,) int64 from 0 to 2"
        in raised.value.__notes__[0]
    )


class Interrupted(Net):
    def train_step(self, batch):
        raise TimeoutError


def test_error_of_another_kind_or_outside_of_a_step_is_not_changed(tmp_path):
    def fail():
        yield from ()
        raise RuntimeError("of the loader")

    class Failing:
        def __iter__(self):
            return fail()

    with pytest.raises(TimeoutError) as raised:
        train(Interrupted(*layers()), (INPUTS, LABELS), tmp_path)
    assert not hasattr(raised.value, "__notes__")
    with pytest.raises(RuntimeError, match="of the loader") as raised:
        learner(Net(*layers()), tmp_path).fit(Failing())
    assert not hasattr(raised.value, "__notes__")


DATASETS = {
    "dataset": (TensorDataset(INPUTS, LABELS), r"such as DataLoader\(dataset, .*; found the type TensorDat"),
    "dataset in memory": (ResidentDataset(INPUTS, LABELS), r"DataLoader\(.*; found the type TensorDataset"),
    "class": (DataLoader, "loader must be an object such as DataLoader.*; found the class DataLoader"),
    "text": ("data", "found the text 'data'"),
    "None": (3, "found the type int"),
    "samples": (list(zip(INPUTS, LABELS, strict=True)), "received one sample, not a batch: pass a loader"),
}
PASSES = {
    "train": lambda loader, folder: learner(Net(*layers()), folder, LossMetric()).fit(loader),
    "valid": lambda loader, folder: learner(Net(*layers()), folder).fit([(INPUTS, LABELS)], loader),
    "evaluator": lambda loader, folder: evaluator(Net(*layers()), folder).eval("x", loader),
}


@pytest.mark.parametrize("run", PASSES.values(), ids=PASSES)
@pytest.mark.parametrize(("loader", "message"), DATASETS.values(), ids=DATASETS)
def test_object_that_is_not_a_loader_is_rejected(loader, message, run, tmp_path):
    with pytest.raises(BuilderError, match=message):
        run(loader, tmp_path)


OBJECTS = {
    "model": lambda builder, part: builder.build(part, Adam()),
    "optimizer": lambda builder, part: builder.build(Net(*layers()), part),
    "metric": lambda builder, part: builder.metrics(part),
    "text metric": lambda builder, part: builder.metric_train(part),
    "recorder": lambda builder, part: builder.with_file_checkpointer(part),
    "renderer": lambda builder, part: builder.renderer(part),
    "retention": lambda builder, part: builder.with_checkpointing_strategy(part),
    "early stopping": lambda builder, part: builder.early_stopping(part),
    "progress renderer": lambda builder, part: builder.with_progress_logger(part),
    "logger": lambda builder, part: builder.metric_loggers(part, part),
    "additional logger": lambda builder, part: builder.add_metric_loggers(part, part),
    "metric of an evaluator": lambda builder, part: EvaluatorBuilder("").metrics(part),
    "model of an evaluator": lambda builder, part: EvaluatorBuilder("").build(part),
}
CLASSES = {
    "logger": InMemoryMetricLogger,
    "model": Net,
    "optimizer": Adam,
    "recorder": DefaultRecorder,
    "renderer": NoRenderer,
    "retention": KeepLast,
    "early stopping": MetricEarlyStopping,
}


@pytest.mark.parametrize("name", OBJECTS)
def test_class_in_place_of_an_object_is_rejected(name, tmp_path):
    part = next((kind for key, kind in CLASSES.items() if key in name), AccuracyMetric)

    with pytest.raises(
        BuilderError, match=rf"such as {part.__name__}\(…\); found the (class|function) {part.__name__}$"
    ):
        OBJECTS[name](LearnerBuilder(tmp_path), part)


@pytest.mark.parametrize("name", [name for name in OBJECTS if "model" not in name])
@pytest.mark.parametrize("part", ["loss", [LossMetric()]], ids=["text", "list"])
def test_text_or_list_in_place_of_an_object_is_rejected(name, part, tmp_path):
    found = "text 'loss'" if part == "loss" else "type list"
    metric = r"such as LossMetric\(\)" if part == "loss" and "metric" in name else "such as"

    with pytest.raises(BuilderError, match=rf"{metric}.*; found the {found}$"):
        OBJECTS[name](LearnerBuilder(tmp_path), part)


COUNTS = {
    "num_epochs": lambda builder, count: builder.num_epochs(count),
    "grads_accumulation": lambda builder, count: builder.grads_accumulation(count),
    "validate_every": lambda builder, count: builder.validate_every(count),
    "sanity_check": lambda builder, count: builder.sanity_check(count),
    "limit_batches": lambda builder, count: builder.limit_batches(count),
    "num_threads": lambda builder, count: builder.num_threads(count),
}


@pytest.mark.parametrize("count", ["3", 2.5, -1])
@pytest.mark.parametrize("name", COUNTS)
def test_text_or_fraction_in_place_of_a_count_is_rejected(name, count, tmp_path):
    with pytest.raises(BuilderError, match=rf"{name}\({count!r}\): pass an integer from [01]$"):
        COUNTS[name](LearnerBuilder(tmp_path), count)


@pytest.mark.parametrize("kind", [torch.optim.lr_scheduler.StepLR, Linear])
def test_class_in_place_of_a_schedule_is_rejected(kind, tmp_path):
    with pytest.raises(BuilderError, match=f"the learning rate cannot be <class .*{kind.__name__}'>. Pass a"):
        LearnerBuilder(tmp_path).devices(["cpu"]).build(Net(*layers()), Adam(), kind)
