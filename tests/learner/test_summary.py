"""The table at the end of a run."""

import math

import pytest
from torch import nn

from stages.contracts.history import History, Split, Value
from stages.learner.summary import summary_text
from stages.loggers import FileMetricLogger, count_epochs, read_history, read_tests
from stages.metrics import LearningRateMetric


def history(split=Split.VALID, **series):
    return History(
        Value(epoch, split, metric, value)
        for metric, values in series.items()
        for epoch, value in enumerate(values, start=1)
    )


def test_table_equals_that_of_burn():
    both = History(
        [*history(Loss=[1.5, 0.009876, 0.25], Accuracy=[90.0, 98.5, 98.5]), *history(Split.TRAIN, Loss=[3.0])]
    )

    assert summary_text(both) == (
        "======================== Learner Summary ========================\n"
        "Total Epochs: 3\n"
        "\n"
        "\n"
        "| Split | Metric   | Min.     | Epoch    | Max.     | Epoch    |\n"
        "|-------|----------|----------|----------|----------|----------|\n"
        "| Train | Loss     | 3.000    | 1        | 3.000    | 1        |\n"
        "| Valid | Accuracy | 90.000   | 1        | 98.500   | 3        |\n"
        "| Valid | Loss     | 9.876e-3 | 2        | 1.500    | 1        |\n"
    )


def test_columns_are_as_wide_as_their_header_and_content():
    tests = {"": {"F": 0.5}, "mnist c": {"F": 12345.678, "Hamming Score @ Threshold(0.5)": 1.0}}

    assert summary_text(History(), tests={"": {"F": 0.5}}).splitlines()[4:] == [
        "| Split | Metric | Min.     | Epoch    | Max.     | Epoch    |",
        "|-------|--------|----------|----------|----------|----------|",
        "| Test  | F      | 0.500    | -        | 0.500    | -        |",
    ]
    assert summary_text(History(), tests=tests).splitlines()[4:] == [
        "| Split          | Metric                         | Min.     | Epoch    | Max.     | Epoch    |",
        "|----------------|--------------------------------|----------|----------|----------|----------|",
        "| Test           | F                              | 0.500    | -        | 0.500    | -        |",
        "| Test (mnist c) | F                              | 12345.678| -        | 12345.678| -        |",
        "| Test (mnist c) | Hamming Score @ Threshold(0.5) | 1.000    | -        | 1.000    | -        |",
    ]


@pytest.mark.parametrize(
    ("values", "cells"),
    [
        ([1.0, 1.0], ["1.000", "1", "1.000", "2"]),
        ([1.0, 1.0, math.nan], ["1.000", "1", "NaN", "3"]),
        ([math.nan, math.nan], ["NaN", "1", "NaN", "2"]),
        ([math.inf, math.nan, 0.01], ["0.010", "3", "NaN", "2"]),
        ([math.inf, -math.inf], ["-inf", "2", "inf", "1"]),
        ([0.0, -3.0], ["-3.000e0", "2", "0.000e0", "1"]),
        ([0.00999, 1e-12], ["1.000e-12", "2", "9.990e-3", "1"]),
    ],
)
def test_minimum_has_the_first_equal_epoch_maximum_the_last_and_nan_is_largest(values, cells):
    row = summary_text(history(Loss=values)).splitlines()[-1]

    assert [cell.strip() for cell in row.split("|")[3:7]] == cells


class Display:
    def __str__(self):
        return "Net {\n  params: 3\n}"


def test_summary_of_a_run_contains_its_model():
    assert summary_text(history(Loss=[1.0]), Display()).splitlines()[1:5] == [
        "Model:",
        "Net {",
        "  params: 3",
        "}",
    ]


def test_summary_contains_the_number_of_parameters():
    assert summary_text(history(Loss=[1.0]), nn.Linear(4, 3)).splitlines()[1:5] == [
        "Model:",
        "Linear(in_features=4, out_features=3, bias=True)",
        "Total parameters: 15",
        "Total Epochs: 1",
    ]


def test_table_from_the_directory_equals_that_of_the_run(train, tmp_path):
    learner = train(tmp_path, epochs=3)

    assert summary_text(read_history(tmp_path)) == summary_text(learner.history)


def test_table_from_logs_counts_epochs_without_values(tmp_path):
    """Burn up to 0.12 wrote the value alone."""
    for path, text in {
        "train/epoch-1/Loss.log": "2\n4\n",
        "train/epoch-2/Loss.log": "",
        "test/c/Loss.log": "1\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)

    text = summary_text(read_history(tmp_path), tests=read_tests(tmp_path), epochs=count_epochs(tmp_path))

    assert "Total Epochs: 2\n" in text
    assert [line[:27] for line in text.splitlines()[-2:]] == [
        "| Train    | Loss   | 3.000",
        "| Test (c) | Loss   | 1.000",
    ]


def test_metric_that_is_not_a_mean_has_its_final_value(tmp_path):
    logger = FileMetricLogger(tmp_path / "valid")
    logger.log(1, "AUROC", 9.0, 1)
    logger.log_final(1, "AUROC", 0.5)
    logger.close()

    assert "| Valid | AUROC  | 0.500    | 1        |" in summary_text(read_history(tmp_path))


def test_learning_rate_has_no_row_for_validation(train, tmp_path):
    old = History([*history(Split.TRAIN, **{"Learning Rate": [0.1]}), *history(**{"Learning Rate": [0.0]})])

    learner = train(tmp_path, epochs=1, change=lambda builder: builder.metrics(LearningRateMetric()))

    for each in (old, learner.history):
        rates = [line for line in summary_text(each).splitlines() if "Learning Rate" in line]
        assert [line.split("|")[1].strip() for line in rates] == ["Train"]
    assert not list((tmp_path / "valid").rglob("Learning_Rate.log"))
