"""Confusion matrices: counts, memory, and the cells that are shown."""

import operator
from functools import reduce

import pytest
import torch

from stages.contracts.outputs import ClassificationOutput
from stages.metrics import ConfusionMatrix, classification
from stages.metrics.classification import select_cells


def output(logits, targets):
    return ClassificationOutput(torch.zeros(()), torch.tensor(logits), torch.tensor(targets))


@pytest.mark.parametrize(
    ("logits", "targets", "cells"),
    [
        ([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]], [0, 1, 1], [(0, 0, 1), (1, 2, 2)]),
        ([[1.0, 0.0], [0.0, 1.0]], [-100, 1], [(1, 1, 1)]),
        ([[0.5], [-0.5], [0.5]], [1, 1, 0], [(0, 1, 1), (1, 0, 1), (1, 1, 1)]),
    ],
    ids=["classes", "ignored target", "single logit"],
)
def test_cells_count_actual_and_predicted_classes(logits, targets, cells):
    assert ConfusionMatrix.from_output(output(logits, targets)).cells() == cells


def test_matrices_of_batches_add():
    both = ConfusionMatrix.from_output(output([[1.0, 0.0]], [0])) + ConfusionMatrix.from_output(
        output([[1.0, 0.0]], [1])
    )

    assert both.cells() == [(0, 0, 1), (1, 0, 1)]


def matrix_of(pairs, classes):
    """Return the matrix of a batch with these pairs of actual and predicted class."""
    actual, predicted = torch.tensor(pairs).T
    logits = torch.nn.functional.one_hot(predicted, classes).float()
    return ConfusionMatrix.from_output(ClassificationOutput(torch.zeros(()), logits, actual))


def test_memory_depends_on_samples_not_classes():
    batches = [[(0, 49_999), (7, 7)], [(49_999, 0)], [(7, 7)]]

    total = reduce(operator.add, [matrix_of(batch, 50_000) for batch in batches])

    sizes = [tensor.untyped_storage().nbytes() for block in total.blocks for tensor in block]
    assert sum(sizes) <= 4 * 2 * 8
    assert total.cells() == [(0, 49_999, 1), (7, 7, 2), (49_999, 0, 1)]
    assert total.classes == 50_000


def test_equal_pairs_are_merged_while_adding(monkeypatch):
    monkeypatch.setattr(classification, "MAX_UNMERGED_PAIRS", 4)

    total = reduce(operator.add, [matrix_of([(1, 0), (2, 2), (-100, 0)], 3)] * 50)

    assert total.size <= 2 * 4 + 3
    assert total.cells() == [(1, 0, 50), (2, 2, 50)]


def test_matrices_of_different_sizes_add():
    both = matrix_of([(0, 1)], 2) + matrix_of([(4, 1)], 5)

    assert (both.classes, both.cells()) == (5, [(0, 1, 1), (4, 1, 1)])


def test_counting_and_adding_do_not_block_on_the_device():
    """A tensor on the meta device has no values, so reading one fails."""
    logits, targets = torch.randn(4, 3, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta")

    matrix = ConfusionMatrix.from_output(ClassificationOutput(torch.zeros(()), logits, targets))

    assert (matrix + matrix).size == 8


def test_matrix_of_200_classes_shows_all_cells():
    cells = [(actual, 0, 1) for actual in range(200)]

    assert select_cells(cells, 200) == cells


def test_larger_matrix_shows_most_confused_pairs():
    """The last number of a pair is the number of samples of its actual class."""
    cells = [(0, 0, 90), (0, 1, 4), (1, 0, 7), (1, 2, 4), *((actual, 0, 1) for actual in range(2, 201))]

    shown = select_cells(cells, 201)

    assert shown[:4] == [(1, 0, 7, 11), (0, 1, 4, 94), (1, 2, 4, 11), (2, 0, 1, 1)]
    assert len(shown) == 100
