"""Edit distances of sequences, and the words that they count."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples

from stages.contracts.outputs import SequenceOutput
from stages.metrics import CharErrorRate, WordErrorRate
from stages.metrics.text import edit_distances

PAD = 9
ROWS = st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=2, max_size=2)


def padded(rows, width=6):
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def levenshtein(one, other):
    if not one or not other:
        return len(one) + len(other)
    return min(
        levenshtein(one[1:], other) + 1,
        levenshtein(one, other[1:]) + 1,
        levenshtein(one[1:], other[1:]) + (one[0] != other[0]),
    )


@given(references=ROWS, predictions=ROWS)
@settings(max_examples=examples(50), deadline=None)
def test_edit_distances_equal_levenshtein_per_row(references, predictions):
    found = edit_distances(padded(references), padded(predictions, 7), PAD)

    assert found.tolist() == [*map(levenshtein, references, predictions)]


def of(targets, predictions):
    return SequenceOutput(torch.tensor(0.0), torch.zeros(1), torch.tensor(predictions), torch.tensor(targets))


@pytest.mark.parametrize("metric", [CharErrorRate, WordErrorRate])
@pytest.mark.parametrize(
    ("targets", "predictions", "rate"),
    [
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]], 0.0),
        ([[1, 3], [3, 4]], [[1, 2], [3, 5]], 50.0),
        ([[1, 3, PAD], [3, 4, PAD]], [[1, 2, PAD], [3, 5, PAD]], 50.0),
        ([[1, 2, 3, 4]], [[2, 3, 4, 5, 6]], 75.0),
        ([[1, PAD, PAD]], [[1, 1, 1]], 200.0),
    ],
)
def test_error_rates_equal_burn_examples(metric, targets, predictions, rate):
    assert metric(pad_token=PAD).measure(of(targets, predictions)).value == rate


def test_decode_defines_the_words():
    def letters(row):
        return "".join(" abc"[token] for token in row).split()

    metric = WordErrorRate(pad_token=PAD, decode=letters)

    measured = metric.measure(of([[1, 2, 0, 3, PAD, PAD]], [[1, 2, 0, 3, 3, PAD]]))

    assert (measured.value, measured.count) == (50.0, 2)
