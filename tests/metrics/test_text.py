"""Edit distances of sequences, and the words that they count."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples

from stages.contracts.outputs import SequenceOutput
from stages.metrics import CharErrorRate, WordErrorRate
from stages.metrics.from_torchmetrics import bleu, rouge_l
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


IGNORED = [[-100, 1, 2, 3], [2, 1, 3, -100]]
PREDICTED = [[0, 1, 2, 4], [2, 1, 3, 0]]


@pytest.mark.parametrize("pad_token", [None, -100])
@pytest.mark.parametrize(
    "build", [CharErrorRate, WordErrorRate, lambda **options: WordErrorRate(decode=tuple, **options)]
)
def test_ignored_targets_count_in_no_error_rate(build, pad_token):
    """`PadBatcher` fills up targets with -100, for which a model has no tokens to predict."""
    logits = torch.nn.functional.one_hot(torch.tensor(PREDICTED), 5).float()
    output = SequenceOutput(torch.tensor(0.0), logits, None, torch.tensor(IGNORED))

    measured = build(pad_token=pad_token).measure(output)

    assert (measured.value, measured.count) == (pytest.approx(100 / 6), 6)  # one of six tokens is wrong


@pytest.mark.parametrize("build", [lambda: bleu(2), rouge_l])
def test_ignored_targets_are_in_no_sentence(build):
    logits = torch.nn.functional.one_hot(torch.tensor(PREDICTED), 5).float()
    padded_output = SequenceOutput(torch.tensor(0.0), logits, None, torch.tensor(IGNORED))
    plain = SequenceOutput(
        torch.tensor(0.0), logits, torch.tensor([[1, 2, 4], [2, 1, 3]]), torch.tensor([[1, 2, 3], [2, 1, 3]])
    )

    assert build().measure(padded_output).value == build().measure(plain).value


@pytest.mark.parametrize("pad_token", [None, PAD])
def test_decoded_tokens_are_compared_with_targets_that_are_not_ignored(pad_token):
    measured = CharErrorRate(pad_token=pad_token).measure(of([[1, -100, 2, -100]], [[1, 2, 3, -100, -100]]))

    assert (measured.value, measured.count) == (50.0, 2)
