"""Burn's log files, and the curves."""

import json

import pytest

from stages.contracts.errors import DataError
from stages.contracts.history import History, Split, Value
from stages.loggers import FileMetricLogger, read_history, write_curves, write_metrics


def test_a_line_a_batch_and_spaces_become_underscores(tmp_path):
    logger = FileMetricLogger(tmp_path)
    logger.log(1, "Top-K Accuracy @ TopK(2)", 20.3125, 64)
    logger.log(1, "Top-K Accuracy @ TopK(2)", 1e-7, 4)
    logger.close()

    assert (tmp_path / "epoch-1/Top-K_Accuracy_@_TopK(2).log").read_text() == "20.3125,64\n0.0000001,4\n"


def test_flushed_lines_are_in_the_file(tmp_path):
    logger = FileMetricLogger(tmp_path)
    logger.log(1, "Loss", 1.0, 1)
    logger.flush()

    assert (tmp_path / "epoch-1/Loss.log").read_text() == "1,1\n"
    logger.close()


def test_an_epoch_that_is_run_again_begins_its_file_anew(tmp_path):
    for value in (1.0, 2.0):
        logger = FileMetricLogger(tmp_path)
        logger.log(1, "Loss", value, 1)
        logger.close()

    assert (tmp_path / "epoch-1/Loss.log").read_text() == "2,1\n"


def test_a_line_that_is_none_is_named(tmp_path):
    (tmp_path / "valid/epoch-2").mkdir(parents=True)
    (tmp_path / "valid/epoch-2/Loss.log").write_text("1,2\nx,2\n")

    with pytest.raises(DataError, match=r"Loss.log, line 2: 'x,2' is not 'value' or 'value,count'"):
        read_history(tmp_path)


@pytest.fixture
def values():
    return History(
        [
            Value(1, Split.TRAIN, "Loss", 3.0),
            Value(1, Split.VALID, "Loss", 2.0),
            Value(2, Split.TRAIN, "Loss", 1.0),
            Value(2, Split.VALID, "Loss", 2.5),
        ]
    )


def test_metrics_are_those_of_the_last_and_of_the_best_epoch(values, tmp_path):
    write_metrics(values, tmp_path / "metrics.json")

    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        "epoch": 2,
        "train": {"Loss": 1.0},
        "valid": {"Loss": 2.5},
        "best": {"epoch": 1, "train": {"Loss": 3.0}, "valid": {"Loss": 2.0}},
    }


def test_a_curve_has_a_row_an_epoch_and_a_column_a_split(values, tmp_path):
    write_curves(values, tmp_path)

    assert (tmp_path / "Loss.tsv").read_text() == "epoch\ttrain\tvalid\n1\t3\t2\n2\t1\t2.5\n"
