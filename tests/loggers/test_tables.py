"""Loggers that write one row per batch: as a table, as JSON, in memory."""

import json
import math

import pytest

from stages.contracts.errors import BuilderError
from stages.loggers import InMemoryMetricLogger, JsonLinesMetricLogger, Row, TsvMetricLogger

LOGGERS = {"tsv": TsvMetricLogger, "jsonl": JsonLinesMetricLogger}


def log_run(logger, epochs=(1, 2)):
    """Log two batches per epoch, as the loop does."""
    for epoch in epochs:
        logger.begin_batch(epoch, 1)
        logger.log(epoch, "Loss", 1 / 3, 64)
        logger.log(epoch, "Top-K Accuracy", 100.0, 64)
        logger.begin_batch(epoch, 2)
        logger.log(epoch, "Loss", 1e-7, 4)
        logger.log_final(epoch, "AUROC", math.nan)
        logger.flush()
    logger.close()


def test_table_has_a_row_per_batch(tmp_path):
    log_run(TsvMetricLogger(tmp_path / "logs/train.tsv"))

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


def test_json_lines_have_an_object_per_batch(tmp_path):
    log_run(JsonLinesMetricLogger(tmp_path / "train.jsonl"), epochs=(1,))

    assert (tmp_path / "train.jsonl").read_bytes() == (
        b'{"epoch": 1, "iteration": 1, "name": "Loss", "value": 0.3333333333333333, "count": 64}\n'
        b'{"epoch": 1, "iteration": 1, "name": "Top-K Accuracy", "value": 100.0, "count": 64}\n'
        b'{"epoch": 1, "iteration": 2, "name": "Loss", "value": 1e-7, "count": 4}\n'
        b'{"epoch": 1, "iteration": null, "name": "AUROC", "value": "NaN", "count": null}\n'
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.1, -0.0, 5e-324, 1.7e308])
def test_any_value_is_valid_json_and_is_read_back(value, tmp_path):
    logger = JsonLinesMetricLogger(tmp_path / "a.jsonl")
    logger.log(1, 'a "name"\n\u2028', value, 1)
    logger.close()

    row = json.loads((tmp_path / "a.jsonl").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert float(row["value"]) == pytest.approx(value, rel=0, abs=0, nan_ok=True)
    assert row["name"] == 'a "name"\n\u2028'


def test_memory_keeps_every_row():
    logger = InMemoryMetricLogger()
    log_run(logger, epochs=(3,))

    assert logger.rows[:3] == [
        Row(3, 1, "Loss", 1 / 3, 64),
        Row(3, 1, "Top-K Accuracy", 100.0, 64),
        Row(3, 2, "Loss", 1e-7, 4),
    ]
    assert logger.rows[3].iteration is None
    assert logger.values(3, "Loss") == [1 / 3, 1e-7]
    assert logger.values(3, "AUROC") == []


@pytest.mark.parametrize("kind", LOGGERS)
def test_resumed_run_writes_the_file_of_an_uninterrupted_run(kind, tmp_path):
    log_run(LOGGERS[kind](tmp_path / "uninterrupted"), epochs=(1, 2, 3))

    log_run(LOGGERS[kind](tmp_path / "resumed"), epochs=(1, 2))
    with (tmp_path / "resumed").open("a") as file:
        file.write("2\t1\tLo")  # a kill cut the row short
    log_run(LOGGERS[kind](tmp_path / "resumed"), epochs=(2, 3))

    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "uninterrupted").read_bytes()


@pytest.mark.parametrize("kind", LOGGERS)
def test_logger_can_repeat_epochs(kind, tmp_path):
    logger = LOGGERS[kind](tmp_path / "again")
    for _ in range(2):
        log_run(logger, epochs=(1, 2))
    log_run(LOGGERS[kind](tmp_path / "once"))

    assert (tmp_path / "again").read_bytes() == (tmp_path / "once").read_bytes()


@pytest.mark.parametrize("kind", LOGGERS)
def test_file_of_another_program_is_not_overwritten(kind, tmp_path):
    (tmp_path / "notes").write_text("do not\nlose this\n")

    with pytest.raises(BuilderError, match="notes exists and was not written by this logger"):
        LOGGERS[kind](tmp_path / "notes").log(1, "Loss", 1.0, 1)

    assert (tmp_path / "notes").read_text() == "do not\nlose this\n"


def test_name_with_a_tab_is_rejected(tmp_path):
    with pytest.raises(BuilderError, match=r"'a\\tb', which cannot be the name of a file"):
        TsvMetricLogger(tmp_path / "a.tsv").log(1, "a\tb", 1.0, 1)
