"""The state of a metric in the middle of an epoch, saved in a checkpoint and loaded again."""

import math
import operator
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torchmetrics.classification import BinaryAUROC, BinaryF1Score, MulticlassAccuracy
from torchmetrics.regression import SpearmanCorrCoef
from torchmetrics.text import Perplexity

import stages.metrics
from stages.contracts.config import Use
from stages.contracts.errors import CheckpointError
from stages.contracts.events import Step
from stages.contracts.history import Split
from stages.contracts.outputs import (
    ClassificationOutput,
    DetectionOutput,
    MultiLabelClassificationOutput,
    RegressionOutput,
    SequenceOutput,
)
from stages.metrics import Mean, MetricAdapter, TorchMetric, build_metric
from stages.metrics.precision_recall import ClassCounts
from stages.metrics.registry import BUILT_IN
from stages.metrics.state import load_state, save_state


def rand(*shape):
    return torch.randn(shape)


def classes(size, of=4):
    return ClassificationOutput(rand(), rand(size, of), torch.randint(0, of, (size,)))


def binary(size):
    return ClassificationOutput(rand(), rand(size, 1), torch.randint(0, 2, (size,)))


def labels(size):
    return MultiLabelClassificationOutput(rand(), rand(size, 3), torch.randint(0, 2, (size, 3)))


def numbers(size):
    return RegressionOutput(rand(), rand(size), rand(size))


def tokens(size):
    return SequenceOutput(rand(), rand(size, 5, 4), None, torch.randint(0, 4, (size, 5)))


def pixels(size):
    return ClassificationOutput(rand(), rand(size, 3, 6, 6), torch.randint(0, 3, (size, 6, 6)))


def images(size, side=16):
    return RegressionOutput(rand(), torch.rand(size, 1, side, side), torch.rand(size, 1, side, side))


def large_images(size):
    return images(size, 176)


def boxes(size):
    corners = 10 * torch.rand(size, 3, 2)
    found = torch.cat((corners, corners + 1 + 5 * torch.rand(size, 3, 2)), 2)
    labels = torch.randint(0, 2, (size, 3))
    shifted = found + 0.5 * torch.rand(size, 3, 4)
    predictions = [
        {"boxes": image, "labels": names, "scores": torch.rand(3)}
        for image, names in zip(shifted, labels, strict=True)
    ]
    targets = [{"boxes": image, "labels": names} for image, names in zip(found, labels, strict=True)]
    return DetectionOutput(rand(), predictions, targets)


def unwrap(output):
    return output["mine"]


OUTPUTS = {
    "accuracy": ({}, classes),
    "auc_pr": ({}, classes),
    "auroc": ({"reduction": "micro"}, binary),
    "bleu": ({"n_gram": 2}, tokens),
    "cer": ({"pad_token": 0}, tokens),
    "cpu_memory": ({}, numbers),
    "cpu_temperature": ({}, numbers),
    "cpu_use": ({}, numbers),
    "cuda": ({}, numbers),
    "data_wait": ({}, numbers),
    "dice": ({"num_classes": 3}, pixels),
    "f_beta": ({"beta": 2.0, "threshold": 0.5}, labels),
    "hamming": ({}, labels),
    "iteration_speed": ({}, numbers),
    "learning_rate": ({}, numbers),
    "loss": ({}, numbers),
    "mae": ({}, numbers),
    "map": ({}, boxes),
    "matthews": ({}, classes),
    "mean_iou": ({"num_classes": 3}, pixels),
    "ms_ssim": ({}, large_images),
    "mse": ({}, numbers),
    "peak_memory": ({}, numbers),
    "perplexity": ({"pad_token": 1}, tokens),
    "precision": ({"top_k": 2}, classes),
    "psnr": ({}, images),
    "recall": ({"reduction": "micro"}, classes),
    "rouge_l": ({}, tokens),
    "scalar": ({"field": "loss"}, numbers),
    "ssim": ({}, images),
    "top_k": ({"k": 2}, classes),
    "utilization": ({}, numbers),
    "wer": ({}, tokens),
}
CASES = {name: (build_metric(Use.model_validate({"kind": name, **w})), o) for name, (w, o) in OUTPUTS.items()}
CASES |= {
    "lists of torchmetrics": (TorchMetric(BinaryAUROC()), binary),
    "lists of two kinds": (TorchMetric(SpearmanCorrCoef()), numbers),
    "sums of torchmetrics": (TorchMetric(BinaryF1Score()), binary),
    "sums a class": (TorchMetric(MulticlassAccuracy(4)), classes),
    "text of torchmetrics": (TorchMetric(Perplexity()), tokens),
    "adapted": (MetricAdapter(stages.metrics.AurocMetric(), unwrap), lambda size: {"mine": classes(size)}),
}


def measure(metric, output, iteration):
    if hasattr(metric, "begin"):
        metric.begin()
        return metric.read()
    if hasattr(metric, "measure_step"):
        return metric.measure_step(Step(output, Split.TRAIN, 1, iteration, 0.1 / iteration))
    return metric.measure(output)


def through_a_file(node):
    """Return a copy of *node* as MessagePack keeps it; fails if a record cannot hold it."""
    if isinstance(node, torch.Tensor):
        assert node.layout is torch.strided
        return node.detach().cpu().clone()
    if type(node) is dict:
        assert all(type(key) is str for key in node)
        return {key: through_a_file(value) for key, value in node.items()}
    if type(node) is list:
        return [through_a_file(value) for value in node]
    assert node is None or type(node) in (bool, int, float, str, bytes), node
    return node


def save_and_load(value, next_batch, metric="Mine"):
    return load_state(through_a_file(save_state(value, metric)), next_batch, metric)


def has_equal_state(one, other):
    """Return whether the state of two values is equal to the bit."""
    return bits_of(save_state(one, "Mine")) == bits_of(save_state(other, "Mine"))


def bits_of(node):
    if isinstance(node, torch.Tensor):
        return node.dtype, tuple(node.shape), bytes(node.contiguous().view(-1).view(torch.uint8).tolist())
    if isinstance(node, dict):
        return {key: bits_of(value) for key, value in node.items()}
    return [bits_of(value) for value in node] if isinstance(node, list) else repr(node)


def value_bits(measured):
    return np.float64(measured.value).tobytes()


def test_cases_cover_every_built_in_metric():
    assert set(OUTPUTS) == set(BUILT_IN)


@pytest.mark.parametrize(("metric", "outputs"), CASES.values(), ids=CASES)
def test_loaded_state_adds_like_the_original(metric, outputs):
    """The epoch is interrupted after each batch but the last; batches have random sizes."""
    torch.manual_seed(3)
    sizes = torch.randint(2, 6, (5,)).tolist()
    batches = [measure(metric, outputs(size), place + 1) for place, size in enumerate(sizes)]

    for cut in range(1, len(batches)):
        before = reduce(operator.add, batches[:cut])
        uninterrupted = reduce(operator.add, batches)

        loaded = save_and_load(before, batches[cut])
        resumed = reduce(operator.add, batches[cut:], loaded)

        assert has_equal_state(loaded, before)
        assert has_equal_state(resumed, uninterrupted)
        assert value_bits(resumed) == value_bits(uninterrupted)
        assert resumed.count == uninterrupted.count


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize(
    ("metric", "outputs"),
    [CASES["auroc"], CASES["loss"], CASES["lists of torchmetrics"], CASES["recall"]],
)
def test_state_loads_into_the_measurement_of_an_empty_batch(metric, outputs, first):
    a, empty = metric.measure(outputs(first)), metric.measure(outputs(0))

    loaded = save_and_load(a, empty)

    assert has_equal_state(loaded + empty, a + empty)
    assert value_bits(loaded + empty) == value_bits(a + empty)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.0, 0.1, 5e-324])
def test_any_float_is_kept_to_the_bit(value):
    assert value_bits(save_and_load(Mean(value, 1), Mean(0.0, 0))) == value_bits(Mean(value, 1))


def test_tensors_are_loaded_to_the_device_of_the_next_batch():
    """``meta`` is a device that every machine has and that is not the CPU."""
    next_batch = stages.metrics.LossMetric().measure(
        RegressionOutput(torch.zeros((), device="meta"), torch.zeros(2), torch.zeros(2))
    )

    loaded = save_and_load(Mean(torch.tensor(1.5, dtype=torch.float64), torch.tensor(3)), next_batch)

    assert loaded.total.device.type == loaded.weight.device.type == "meta"
    assert loaded.total.dtype == torch.float64


@dataclass(frozen=True)
class Totals:
    """The accumulated value of a user's metric, without methods for its state."""

    number: int = 7
    tensor: torch.Tensor = field(default_factory=lambda: torch.arange(3, dtype=torch.int16))
    half: torch.Tensor = field(default_factory=lambda: torch.tensor([0.1, 0.2]).bfloat16())
    numpy: np.float32 = field(default_factory=lambda: np.float32(0.1))
    exact: bool = True
    optional: float | None = None
    text: str = "é"
    inner: Mean = field(default_factory=lambda: Mean(0.5, 2))
    count: int = 1

    def __add__(self, other):
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("number", "tensor", "half", "numpy", "inner", "count")
        }
        return Totals(**sums)

    @property
    def value(self):
        return float(self.numpy) + self.inner.value


def test_frozen_dataclass_of_tensors_and_numbers_needs_no_methods():
    a, b = Totals(number=2**40, numpy=np.float32(0.7), optional=0.5), Totals()

    loaded = save_and_load(a, b)

    assert has_equal_state(loaded, a)
    assert has_equal_state(loaded + b, a + b)
    assert type(loaded.numpy) is np.float32


def test_saved_tensors_are_detached_and_of_the_base_class():
    parameter = torch.nn.Parameter(torch.tensor([0.1, 0.2]))

    state = save_state(OwnState(OrderedDict(a=parameter, b=[parameter * 2])), "Mine")

    assert type(state) is dict
    assert [type(tensor) for tensor in (state["a"], *state["b"])] == [torch.Tensor] * 2
    assert not state["a"].requires_grad
    assert not state["b"][0].requires_grad


@dataclass(frozen=True)
class WithPostInit:
    """Computes an attribute from its fields."""

    total: float
    count: int = 1

    def __post_init__(self):
        object.__setattr__(self, "next", self.total + 1)

    def __add__(self, other):
        return WithPostInit(self.total + other.total)

    @property
    def value(self):
        return self.next


@dataclass(frozen=True)
class Pair:
    """Holds a value with methods for its state beside one without."""

    counts: ClassCounts
    mean: Mean
    count: int = 1

    def __add__(self, other):
        return Pair(self.counts + other.counts, self.mean + other.mean)

    @property
    def value(self):
        return self.counts.value + self.mean.value


def pair(size):
    torch.manual_seed(size)
    return Pair(CASES["recall"][0].measure(classes(size)), Mean(float(size), size))


class WordCounts:
    """Holds what no default could save: a dict with keys that are not text, a set, and a function."""

    __slots__ = ("__counts", "names", "rule")

    def __init__(self, counts, names, rule=math.sqrt):
        self.__counts, self.names, self.rule = counts, names, rule

    def __add__(self, other):
        keys = self.__counts.keys() | other.__counts.keys()
        both = {key: self.__counts.get(key, 0) + other.__counts.get(key, 0) for key in sorted(keys)}
        return WordCounts(both, self.names | other.names, self.rule)

    def state_dict(self):
        return {"keys": list(self.__counts), "counts": [*self.__counts.values()], "names": sorted(self.names)}

    def load_state_dict(self, state):
        counts = dict(zip(state["keys"], state["counts"], strict=True))
        return WordCounts(counts, set(state["names"]), self.rule)

    @property
    def value(self):
        return self.rule(sum(self.__counts.values()))

    count = 1


class NamedMean(NamedTuple):
    """A tuple, which is not a dataclass, with methods for its state."""

    total: float
    count: int

    def __add__(self, other):
        return NamedMean(self.total + other.total, self.count + other.count)

    def state_dict(self):
        return self._asdict()

    def load_state_dict(self, state):
        return self._replace(**state)

    @property
    def value(self):
        return self.total / self.count


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (WordCounts({3: 0.1, 1: 2.5}, {"x", "y"}), WordCounts({1: 0.2}, set())),
        (NamedMean(0.1, 2), NamedMean(0.2, 1)),
        (WithPostInit(0.1), WithPostInit(0.2)),
        (pair(5), pair(7)),
    ],
    ids=["own methods", "named tuple", "post init", "pair"],
)
def test_users_own_class_is_saved_and_loaded(a, b):
    loaded = save_and_load(a, b)

    assert type(loaded) is type(a)
    assert has_equal_state(loaded, a)
    assert (loaded + b).value == (a + b).value


@dataclass(frozen=True)
class Holder:
    """A frozen dataclass with one field of any type."""

    held: object
    value: float = 0.0
    count: int = 1


@dataclass
class Mutable:
    total: float = 0.0


class Plain:
    """A class without methods for its state."""


class OwnState:
    """A class whose state is *state*."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        return OwnState(state)


class InPlace(OwnState):
    """A class that loads its state in place, as a module does."""

    def __init__(self):
        super().__init__({})

    def load_state_dict(self, state):
        self.state = state


class HalfState:
    """A class that can be saved and not loaded."""

    def state_dict(self):
        return {}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (Plain(), "accumulates Plain, which cannot be saved in the middle of an epoch"),
        (Mutable(), "accumulates Mutable, which cannot be saved"),
        (Holder(Mutable()), "accumulates Mutable, which cannot be saved"),
        (Holder(math.sqrt), "accumulates builtin_function_or_method in Holder.held"),
        (Holder({"a": 1}), "accumulates dict in Holder.held"),
        (Holder((1, 2)), "accumulates tuple in Holder.held"),
        (HalfState(), "accumulates HalfState, which has only the method state_dict"),
        (Holder(np.zeros(2)), "accumulates ndarray in Holder.held"),
    ],
)
def test_value_without_methods_is_rejected_with_advice(value, found):
    with pytest.raises(TypeError) as caught:
        save_state(value, "Mine")

    assert "metric 'Mine' accumulates" in str(caught.value)
    assert found in str(caught.value)
    assert "give it the methods state_dict() and load_state_dict(state)" in str(caught.value)


def test_state_dict_that_is_not_a_dict_is_rejected():
    with pytest.raises(TypeError, match=r"metric 'Mine': OwnState.state_dict\(\) is a list: return a dict"):
        save_state(OwnState([1]), "Mine")


MEAN = {"total": 1.0, "weight": 1}


@pytest.mark.parametrize(
    ("state", "value", "message"),
    [
        (save_state(WithPostInit(0.5), "Loss"), Mean(0.0, 0), "found count, total, expected total, weight"),
        (save_state(Mean(0.5, 1), "Loss"), WithPostInit(0.0), "found total, weight, expected count, total"),
        ({**MEAN, "extra": 1}, Mean(0.0, 0), "found extra, total, weight"),
        ({**MEAN, "__class__": 1}, Mean(0.0, 0), "found __class__, total, weight"),
        ({"total": 1.0}, Mean(0.0, 0), "found total, expected total, weight"),
        ({"total": {}, "weight": 1}, Mean(0.0, 0), "found a dict, expected a float"),
        ({"total": [1.0], "weight": 1}, Mean(0.0, 0), "found a list, expected a float"),
        ({"total": "1", "weight": 1}, Mean(0.0, 0), "found a str, expected a float"),
        ({}, InPlace(), "load_state_dict returned NoneType, not InPlace"),
        ({}, Mean(0.0, 0), "state of metric 'Loss' in the checkpoint does not belong to the Mean"),
        (None, Mean(0.0, 0), "found a NoneType, expected a dict"),
        ([1.0], Mean(0.0, 0), "found a list, expected a dict"),
        ({"counts": torch.zeros(3)}, NamedMean(0.0, 0), "counts"),
        ({"batches": []}, CASES["auroc"][0].measure(binary(2)), "KeyError: 'weight'"),
        (
            {"states": {"tp": torch.zeros(1)}, "count": 1},
            CASES["lists of torchmetrics"][0].measure(binary(2)),
            "found the states tp, expected preds, target",
        ),
    ],
)
def test_state_of_another_metric_is_rejected(state, value, message):
    with pytest.raises(CheckpointError, match="Resume with the metrics of the interrupted run") as caught:
        load_state(state, value, "Loss")

    assert message in str(caught.value)


def test_epoch_can_be_interrupted_after_any_batch():
    """Chunks of 40 batches, whose runs differ at each cut."""
    metric = stages.metrics.AurocMetric()
    torch.manual_seed(0)
    batches = [metric.measure(binary(2)) for _ in range(40)]
    sums = [batches[0]]
    for batch in batches[1:]:
        sums.append(sums[-1] + batch)

    for (before, after), batch in zip(pairwise(sums), batches[1:], strict=True):
        assert has_equal_state(save_and_load(before, batch) + batch, after)
