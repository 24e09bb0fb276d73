"""Loggers that keep a row a batch: as a table, as JSON, in memory; and several as one."""

import json
import math

import pytest

from stages.contracts.errors import BuilderError
from stages.loggers import (
    InMemoryMetricLogger,
    JsonLinesMetricLogger,
    Row,
    TsvMetricLogger,
)

LOGGERS = {"tsv": TsvMetricLogger, "jsonl": JsonLinesMetricLogger}


def drive(logger, epochs=(1, 2)):
    """Two batches an epoch, as the loop does it."""
    for epoch in epochs:
        logger.log(epoch, "Loss", 1 / 3, 64)
        logger.log(epoch, "Top-K Accuracy", 100.0, 64)
        logger.log(epoch, "Loss", 1e-7, 4)
        logger.log_final(epoch, "AUROC", math.nan)
        logger.flush()
    logger.close()


def test_a_table_has_a_row_a_batch(tmp_path):
    drive(TsvMetricLogger(tmp_path / "logs/train.tsv"))

    assert (tmp_path / "logs/train.tsv").read_bytes() == (
        b"epoch\titeration\tname\tvalue\tcount\n"
        b"1\t1\tLoss\t0.3333333333333333\t64\n"
        b"1\t1\tTop-K Accuracy\t100\t64\n"
        b"1\t2\tLoss\t0.0000001\t4\n"
        b"1\t\tAUROC\tNaN\tfinal\n"
        b"2\t1\tLoss\t0.3333333333333333\t64\n"
        b"2\t1\tTop-K Accuracy\t100\t64\n"
        b"2\t2\tLoss\t0.0000001\t4\n"
        b"2\t\tAUROC\tNaN\tfinal\n"
    )


def test_json_has_an_object_a_batch(tmp_path):
    drive(JsonLinesMetricLogger(tmp_path / "train.jsonl"), epochs=(1,))

    assert (tmp_path / "train.jsonl").read_bytes() == (
        b'{"epoch": 1, "iteration": 1, "name": "Loss", "value": 0.3333333333333333, "count": 64}\n'
        b'{"epoch": 1, "iteration": 1, "name": "Top-K Accuracy", "value": 100.0, "count": 64}\n'
        b'{"epoch": 1, "iteration": 2, "name": "Loss", "value": 1e-7, "count": 4}\n'
        b'{"epoch": 1, "iteration": null, "name": "AUROC", "value": "NaN", "count": null}\n'
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.1, -0.0, 5e-324, 1.7e308])
def test_any_value_is_json_and_reads_back(value, tmp_path):
    logger = JsonLinesMetricLogger(tmp_path / "a.jsonl")
    logger.log(1, 'a "name"\n\u2028', value, 1)
    logger.close()

    row = json.loads((tmp_path / "a.jsonl").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert float(row["value"]) == pytest.approx(value, rel=0, abs=0, nan_ok=True)
    assert row["name"] == 'a "name"\n\u2028'


def test_memory_keeps_every_row():
    logger = InMemoryMetricLogger()
    drive(logger, epochs=(3,))

    assert logger.rows[:3] == [
        Row(3, 1, "Loss", 1 / 3, 64),
        Row(3, 1, "Top-K Accuracy", 100.0, 64),
        Row(3, 2, "Loss", 1e-7, 4),
    ]
    assert logger.rows[3].iteration is None
    assert logger.values(3, "Loss") == [1 / 3, 1e-7]
    assert logger.values(3, "AUROC") == []


@pytest.mark.parametrize("kind", LOGGERS)
def test_a_broken_and_resumed_run_leaves_the_file_of_an_unbroken_one(kind, tmp_path):
    drive(LOGGERS[kind](tmp_path / "unbroken"), epochs=(1, 2, 3))

    drive(LOGGERS[kind](tmp_path / "broken"), epochs=(1, 2))
    with (tmp_path / "broken").open("a") as file:
        file.write("2\t1\tLo")  # killed within a row
    drive(LOGGERS[kind](tmp_path / "broken"), epochs=(2, 3))

    assert (tmp_path / "broken").read_bytes() == (tmp_path / "unbroken").read_bytes()


@pytest.mark.parametrize("kind", LOGGERS)
def test_the_same_logger_may_run_an_epoch_again(kind, tmp_path):
    logger = LOGGERS[kind](tmp_path / "again")
    for _ in range(2):
        drive(logger, epochs=(1, 2))
    drive(LOGGERS[kind](tmp_path / "once"))

    assert (tmp_path / "again").read_bytes() == (tmp_path / "once").read_bytes()


@pytest.mark.parametrize("kind", LOGGERS)
def test_a_file_of_something_else_is_not_written_over(kind, tmp_path):
    (tmp_path / "notes").write_text("do not\nlose this\n")

    with pytest.raises(BuilderError, match="notes is there and holds something else"):
        LOGGERS[kind](tmp_path / "notes").log(1, "Loss", 1.0, 1)

    assert (tmp_path / "notes").read_text() == "do not\nlose this\n"


def test_a_name_that_no_table_holds_is_refused(tmp_path):
    with pytest.raises(BuilderError, match=r"'a\\tb', and that is no name for a file"):
        TsvMetricLogger(tmp_path / "a.tsv").log(1, "a\tb", 1.0, 1)
