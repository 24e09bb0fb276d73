"""How often each class is taken for each other one."""

import operator
from functools import reduce

import pytest
import torch

from stages.contracts.confusion import shown_cells
from stages.contracts.outputs import ClassificationOutput
from stages.metrics import ConfusionMatrix, confusion_matrix


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
    assert ConfusionMatrix.from_output(output(logits, targets)).cells() == cells


def test_batches_add_up():
    both = ConfusionMatrix.from_output(output([[1.0, 0.0]], [0])) + ConfusionMatrix.from_output(
        output([[1.0, 0.0]], [1])
    )

    assert both.cells() == [(0, 0, 1), (1, 0, 1)]


def sparse(pairs, classes):
    """Return the matrix of a batch with these pairs of actual and predicted class."""
    actual, predicted = torch.tensor(pairs).T
    logits = torch.nn.functional.one_hot(predicted, classes).float()
    return ConfusionMatrix.from_output(ClassificationOutput(torch.zeros(()), logits, actual))


def test_the_memory_grows_with_the_samples_and_not_with_the_classes():
    batches = [[(0, 49_999), (7, 7)], [(49_999, 0)], [(7, 7)]]

    total = reduce(operator.add, [sparse(batch, 50_000) for batch in batches])

    held = [tensor.untyped_storage().nbytes() for block in total.blocks for tensor in block]
    assert sum(held) <= 4 * 2 * 8
    assert total.cells() == [(0, 49_999, 1), (7, 7, 2), (49_999, 0, 1)]
    assert total.classes == 50_000


def test_equal_pairs_are_merged_while_the_batches_add_up(monkeypatch):
    monkeypatch.setattr(confusion_matrix, "MAX_UNMERGED_PAIRS", 4)

    total = reduce(operator.add, [sparse([(1, 0), (2, 2), (-100, 0)], 3)] * 50)

    assert total.size <= 2 * 4 + 3
    assert total.cells() == [(1, 0, 50), (2, 2, 50)]


def test_matrices_of_other_sizes_add_up():
    both = sparse([(0, 1)], 2) + sparse([(4, 1)], 5)

    assert (both.classes, both.cells()) == (5, [(0, 1, 1), (4, 1, 1)])


def test_counting_and_adding_wait_for_no_device():
    """A tensor on the meta device has no values, so reading one fails."""
    logits, targets = torch.randn(4, 3, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta")

    matrix = ConfusionMatrix.from_output(ClassificationOutput(torch.zeros(()), logits, targets))

    assert (matrix + matrix).size == 8


def test_a_matrix_of_200_classes_is_shown_as_a_whole():
    cells = [(actual, 0, 1) for actual in range(200)]

    assert shown_cells(cells, 200) == cells


def test_of_a_larger_matrix_the_most_confused_pairs_are_shown():
    """The last number is that of the samples of the actual class."""
    cells = [(0, 0, 90), (0, 1, 4), (1, 0, 7), (1, 2, 4), *((actual, 0, 1) for actual in range(2, 201))]

    shown = shown_cells(cells, 201)

    assert shown[:4] == [(1, 0, 7, 11), (0, 1, 4, 94), (1, 2, 4, 11), (2, 0, 1, 1)]
    assert len(shown) == 100
