"""What `dvc metrics` and `dvc plots` read."""

import json
import math

import pytest

from stages.contracts.errors import BuilderError
from stages.contracts.history import History, Split, Value
from stages.loggers import write_curves, write_metrics


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


def test_metrics_that_are_no_numbers_still_are_json(tmp_path):
    write_metrics(History([Value(1, Split.TRAIN, "Loss", math.nan)]), tmp_path / "metrics.json")

    assert strict(tmp_path / "metrics.json")["train"] == {"Loss": "NaN"}


def test_a_curve_has_a_row_an_epoch_and_a_column_a_split(values, tmp_path):
    write_curves(values, tmp_path)

    assert (tmp_path / "Loss.tsv").read_text() == "epoch\ttrain\tvalid\n1\t3\t2\n2\t1\t2.5\n"


def test_a_curve_stays_in_its_folder(tmp_path):
    with pytest.raises(BuilderError, match="no name for a file"):
        write_curves(History([Value(1, Split.TRAIN, "../Loss", 1.0)]), tmp_path / "plots")


def strict(path):
    def refuse(constant):
        raise ValueError(constant)

    return json.loads(path.read_text(), parse_constant=refuse)
