"""How often each class is taken for each other one."""

import pytest
import torch

from stages.contracts.outputs import ClassificationOutput
from stages.metrics import ConfusionMatrix


def output(logits, targets):
    return ClassificationOutput(torch.zeros(()), torch.tensor(logits), torch.tensor(targets))


@pytest.mark.parametrize(
    ("logits", "targets", "cells"),
    [
        ([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]], [0, 1, 1], [(0, 0, 1), (1, 2, 2)]),
        ([[1.0, 0.0], [0.0, 1.0]], [-100, 1], [(1, 1, 1)]),
        ([[0.5], [-0.5], [0.5]], [1, 1, 0], [(0, 1, 1), (1, 0, 1), (1, 1, 1)]),
    ],
    ids=["classes", "one is ignored", "a single logit"],
)
def test_counts_are_of_actual_and_given_class(logits, targets, cells):
    assert ConfusionMatrix.of(output(logits, targets)).cells() == cells


def test_batches_add_up():
    both = ConfusionMatrix.of(output([[1.0, 0.0]], [0])) + ConfusionMatrix.of(output([[1.0, 0.0]], [1]))

    assert both.cells() == [(0, 0, 1), (1, 0, 1)]
