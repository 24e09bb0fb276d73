"""What a metric has added up, as a tree that a checkpoint holds, and back."""

import functools
import inspect
import math
import operator
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from itertools import pairwise
from pathlib import Path
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
    MultiLabelClassificationOutput,
    RegressionOutput,
    SequenceOutput,
)
from stages.metrics import Adapted, Mean, TorchMetric, build_metric
from stages.metrics.config import BUILT_IN
from stages.metrics.summaries import from_tree, to_tree

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


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


def mapped(output):
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
    "dice": ({"num_classes": 3}, pixels),
    "f_beta": ({"beta": 2.0, "threshold": 0.5}, labels),
    "hamming": ({}, labels),
    "iteration_speed": ({}, numbers),
    "learning_rate": ({}, numbers),
    "loss": ({}, numbers),
    "mae": ({}, numbers),
    "ms_ssim": ({}, large_images),
    "mse": ({}, numbers),
    "perplexity": ({"pad_token": 1}, tokens),
    "precision": ({"top_k": 2}, classes),
    "psnr": ({}, images),
    "recall": ({"reduction": "micro"}, classes),
    "rouge_l": ({}, tokens),
    "ssim": ({}, images),
    "top_k": ({"k": 2}, classes),
    "wer": ({}, tokens),
}
CASES = {name: (build_metric(Use.model_validate({"kind": name, **w})), o) for name, (w, o) in OUTPUTS.items()}
CASES |= {
    "lists of torchmetrics": (TorchMetric(BinaryAUROC()), binary),
    "lists of two kinds": (TorchMetric(SpearmanCorrCoef()), numbers),
    "sums of torchmetrics": (TorchMetric(BinaryF1Score()), binary),
    "sums a class": (TorchMetric(MulticlassAccuracy(4)), classes),
    "text of torchmetrics": (TorchMetric(Perplexity()), tokens),
    "adapted": (Adapted(stages.metrics.AurocMetric(), mapped), lambda size: {"mine": classes(size)}),
}


def measured(metric, output, iteration):
    if hasattr(metric, "measure_step"):
        return metric.measure_step(Step(output, Split.TRAIN, 1, iteration, 0.1 / iteration))
    return metric.measure(output)


def as_from_a_file(node):
    """A copy with no more than MessagePack keeps: what is no plain value fails here."""
    if isinstance(node, torch.Tensor):
        assert node.layout is torch.strided
        return node.detach().cpu().clone()
    if type(node) is dict:
        assert all(type(key) is str for key in node)
        return {key: as_from_a_file(value) for key, value in node.items()}
    if type(node) is list:
        return [as_from_a_file(value) for value in node]
    assert node is None or type(node) in (bool, int, float, str, bytes), node
    return node


def same(one, other):
    """Whether two summaries hold the same, to the bit."""
    return repr_of(to_tree(one)) == repr_of(to_tree(other))


def repr_of(node):
    if isinstance(node, torch.Tensor):
        return node.dtype, tuple(node.shape), bytes(node.contiguous().view(-1).view(torch.uint8).tolist())
    if isinstance(node, dict):
        return {key: repr_of(value) for key, value in node.items()}
    return [repr_of(value) for value in node] if isinstance(node, list) else repr(node)


def value_of(summary):
    return np.float64(summary.value).tobytes()


def test_every_built_in_metric_is_tried():
    assert set(OUTPUTS) == set(BUILT_IN)


@pytest.mark.parametrize(("metric", "outputs"), CASES.values(), ids=CASES)
def test_sums_that_were_saved_add_as_those_that_were_not(metric, outputs):
    """Cut after each batch but the last, batches of random sizes."""
    torch.manual_seed(3)
    sizes = torch.randint(2, 6, (5,)).tolist()
    batches = [measured(metric, outputs(size), place + 1) for place, size in enumerate(sizes)]

    for cut in range(1, len(batches)):
        before = reduce(operator.add, batches[:cut])
        unbroken = reduce(operator.add, batches)

        back = from_tree(as_from_a_file(to_tree(before)), batches[cut])
        resumed = reduce(operator.add, batches[cut:], back)

        assert same(back, before)
        assert same(resumed, unbroken)
        assert value_of(resumed) == value_of(unbroken)
        assert resumed.count == unbroken.count


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize(
    ("metric", "outputs"),
    [CASES["auroc"], CASES["loss"], CASES["lists of torchmetrics"], CASES["recall"]],
)
def test_a_batch_of_nothing_is_example_enough(metric, outputs, first):
    a, nothing = metric.measure(outputs(first)), metric.measure(outputs(0))

    back = from_tree(as_from_a_file(to_tree(a)), nothing)

    assert same(back + nothing, a + nothing)
    assert value_of(back + nothing) == value_of(a + nothing)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.0, 0.1, 5e-324])
def test_any_number_is_kept(value):
    assert value_of(from_tree(to_tree(Mean(value, 1)), Mean(0.0, 0))) == value_of(Mean(value, 1))


def test_tensors_go_to_the_device_of_the_next_batch():
    """``meta`` is a device that every machine has and that is not the CPU."""
    next_batch = stages.metrics.LossMetric().measure(
        RegressionOutput(torch.zeros((), device="meta"), torch.zeros(2), torch.zeros(2))
    )

    back = from_tree(to_tree(Mean(torch.tensor(1.5, dtype=torch.float64), torch.tensor(3))), next_batch)

    assert back.total.device.type == back.weight.device.type == "meta"
    assert back.total.dtype == torch.float64


class Adds:
    """A user's own sums: all attributes of one are joined with those of the other."""

    count = 1

    def __add__(self, other):
        made = object.__new__(type(self))
        for name, mine in self.held().items():
            theirs = other.held()[name]
            joined = mine | theirs if isinstance(mine, set | frozenset) else self.join(mine, theirs)
            object.__setattr__(made, name, joined)
        return made

    def join(self, mine, theirs):
        if callable(mine) or isinstance(mine, Enum | str | None):
            return mine
        if isinstance(mine, Counter):
            return mine + theirs
        if isinstance(mine, dict):
            return {key: self.join(mine[key], theirs[key]) if key in theirs else mine[key] for key in mine}
        return mine + theirs

    def held(self):
        return vars(self)

    @property
    def value(self):
        return 0.0


class Kind(Enum):
    FAST = 1


@dataclass
class Rich(Adds):
    number: int = 2**80
    small: int = 7
    tensor: torch.Tensor = field(default_factory=lambda: torch.arange(3, dtype=torch.int16))
    half: torch.Tensor = field(default_factory=lambda: torch.rand(2).bfloat16())
    pair: tuple = ((1, 2.5), (b"x", None))
    names: set = field(default_factory=lambda: {"b", "a"})
    fixed: frozenset = frozenset({1})
    by_number: dict = field(
        default_factory=lambda: {1: 0.5, (2, 3): 0.25, "bytes": 1.0, "shape": 1, "dtype": 2}
    )
    counted: Counter = field(default_factory=lambda: Counter("abracadabra"))
    table: np.ndarray = field(default_factory=lambda: np.arange(6.0).reshape(2, 3))
    numpy: np.float32 = field(default_factory=lambda: np.float32(0.1))
    kind: Kind = Kind.FAST
    rule: object = math.sqrt
    partial: object = functools.partial(math.pow, 2)
    inner: Mean = field(default_factory=lambda: Mean(0.5, 2))
    text: str = "é"


def test_a_users_own_dataclass_may_hold_anything_plain():
    a, b = Rich(number=2**90, inner=Mean(0.1, 1)), Rich()

    back = from_tree(as_from_a_file(to_tree(a)), b)

    assert same(back, a)
    assert same(back + b, a + b)
    assert back.rule is math.sqrt
    assert back.by_number == a.by_number
    assert type(back.numpy) is np.float32
    assert back.names == a.names


SETS = """
from dataclasses import dataclass
from stages.metrics.summaries import to_tree

@dataclass
class Words:
    names: set
    pairs: frozenset

words = ["ant", "bee", "cat", "dog", "eel", "fox"]
pairs = {frozenset(words[i : i + n]) for i in range(4) for n in (2, 3)}
print(to_tree(Words(set(words), frozenset(pairs))))
"""


def test_sets_are_written_in_the_same_order_under_any_hash_seed():
    def printed(seed):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SETS]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True).stdout

    assert printed("1") == printed("2")


class InSlots:
    __slots__ = ("__hidden", "total")

    def __init__(self, total):
        self.total = total
        self.__hidden = total * 2

    def __add__(self, other):
        return InSlots(self.total + other.total)

    @property
    def value(self):
        return self.__hidden

    count = 1


class Named(NamedTuple):
    total: float
    count: int

    def __add__(self, other):
        return Named(self.total + other.total, self.count + other.count)

    @property
    def value(self):
        return self.total / self.count


@dataclass(frozen=True)
class Checked:
    total: float
    seen: dict = field(default_factory=dict)
    count: int = 1

    def __post_init__(self):
        object.__setattr__(self, "beside", self.total + 1)

    def __add__(self, other):
        return Checked(self.total + other.total)

    @property
    def value(self):
        return self.beside


@pytest.mark.parametrize("make", [InSlots, lambda total: Named(total, 2), Checked])
def test_a_users_own_class_of_any_make_comes_back(make):
    a, b = make(0.1), make(0.2)

    back = from_tree(as_from_a_file(to_tree(a)), b)

    assert type(back) is type(a)
    assert same(back, a)
    assert (back + b).value == (a + b).value


@dataclass
class Tally:
    hits: int


@dataclass
class Sometimes(Adds):
    tally: "Tally | None" = None
    tallies: "dict[str, Tally]" = field(default_factory=dict)


def test_what_the_next_batch_lacks_is_known_by_its_annotation():
    a = Sometimes(Tally(3), {"x": Tally(4)})

    assert from_tree(as_from_a_file(to_tree(a)), Sometimes()) == a


class Opened(Adds):
    def __init__(self):
        self.files = [inspect]


class Grown(list):
    value, count = 0.0, 1


@pytest.mark.parametrize(
    ("held", "what"),
    [
        (object(), "holds a object at .held"),
        (inspect, "holds a module at .held"),
        (Grown([1]), "holds a Grown at .held"),
        ([1, {"a": 2j}], r"holds a complex at .held\[1\]\[…\]"),
        (torch.ones(2, dtype=torch.complex64), "holds a tensor of torch.complex64"),
        (torch.eye(2).to_sparse(), "torch.sparse_coo at .held"),
        (np.array([object()]), "holds an array of object"),
        (reduce(lambda node, _: [node], range(50), 1), "values more than 32 deep"),
    ],
)
def test_what_no_file_could_hold_without_code_is_refused_with_the_metrics_name(held, what):
    summary = Rich()
    summary.held = held

    with pytest.raises(TypeError, match=f"what metric 'Mine' adds up {what}" if what[:1] == "h" else what):
        to_tree(summary, "Mine")


MEAN = "stages.metrics.mean:Mean"
WHOLE = ["total", 1.0, "weight", 1]


@pytest.mark.parametrize(
    ("tree", "like", "message"),
    [
        (to_tree(Checked(0.5)), Mean(0.0, 0), "holds a .*Checked, and what is measured now is made of none"),
        (to_tree(Mean(0.5, 1)), Checked(0.0), "it is a Mean, and this a Checked"),
        ({"object": "os:system", "holds": []}, Mean(0.0, 0), "holds a os:system"),
        ({"object": MEAN, "holds": [*WHOLE, "extra", 1]}, Mean(0.0, 0), "extra"),
        ({"object": MEAN, "holds": [*WHOLE, "__class__", 1]}, Mean(0.0, 0), "called '__class__'"),
        ({"object": MEAN, "holds": ["total"]}, Mean(0.0, 0), "zip"),
        ({"object": MEAN, "holds": ["total", {"same": None}, "weight", 1]}, Mean(0.0, 0), "it lacks what"),
        ({"object": MEAN, "holds": ["total", 1.0]}, Mean(0.0, 0), "a Mean lacks weight"),
        ({"tuple": [], "set": []}, Mean(0.0, 0), "'Loss' had added up is not"),
        ({"int": "x"}, Mean(0.0, 0), "invalid literal"),
        ({"what": 1}, Mean(0.0, 0), "what"),
        (None, Mean(0.0, 0), "it is a NoneType"),
    ],
)
def test_a_tree_of_something_else_is_refused(tree, like, message):
    with pytest.raises(CheckpointError, match=message):
        from_tree(tree, like, "Loss")


def test_a_part_of_an_epoch_is_a_part_at_every_place():
    """Chunks of 40 batches, whose piles differ at each cut."""
    metric = stages.metrics.AurocMetric()
    torch.manual_seed(0)
    batches = [metric.measure(binary(2)) for _ in range(40)]
    sums = [batches[0]]
    for batch in batches[1:]:
        sums.append(sums[-1] + batch)

    for (before, after), batch in zip(pairwise(sums), batches[1:], strict=True):
        assert same(from_tree(as_from_a_file(to_tree(before)), batch) + batch, after)
