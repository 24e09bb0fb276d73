"""What is measured: dataset values, whatever the batches."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss

from stages.contracts.config import Use
from stages.contracts.errors import PluginError
from stages.contracts.outputs import ClassificationOutput
from stages.metrics import AccuracyMetric, LossMetric, Mean, build_metric


@given(cuts=st.lists(st.integers(0, 50), max_size=5), seed=st.integers(0, 99))
def test_an_epoch_is_measured_as_one_set_however_it_is_batched(cuts, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(50, 4, generator=generator)
    targets = torch.randint(0, 4, (50,), generator=generator)
    edges = [0, *sorted({cut for cut in cuts if cut}), 50]
    batches = [slice(a, b) for a, b in pairwise(edges) if b > a]
    outputs = [
        ClassificationOutput(F.cross_entropy(logits[cut], targets[cut]), logits[cut], targets[cut])
        for cut in batches
    ]

    accuracy = sum((AccuracyMetric().measure(each) for each in outputs), Mean(0.0, 0)).value
    loss = sum((LossMetric().measure(each) for each in outputs), Mean(0.0, 0)).value

    assert accuracy == pytest.approx(100 * accuracy_score(targets, logits.argmax(1)), abs=1e-6)
    assert loss == pytest.approx(log_loss(targets, logits.double().softmax(1), labels=range(4)), abs=1e-6)


def test_a_batch_mean_is_kept_exactly():
    mean = torch.tensor(0.1)

    assert Mean.of(mean, 37).value == mean.item()


def test_the_mean_of_nothing_is_nan():
    assert math.isnan(Mean(0.0, 0).value)


def test_a_metric_is_found_by_name_and_must_be_one():
    assert isinstance(build_metric(Use(kind="loss")), LossMetric)
    with pytest.raises(PluginError, match="no name, no unit, no measure"):
        build_metric(Use(kind="builtins:object"))
