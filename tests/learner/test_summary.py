"""The table at the end of a run."""

import math

from stages.contracts.history import History, Split, Value
from stages.learner import summary_text
from stages.loggers import FileMetricLogger, read_history


def history(**series):
    return History(
        Value(epoch, Split.VALID, metric, value)
        for metric, values in series.items()
        for epoch, value in enumerate(values, start=1)
    )


def test_the_table_is_burns():
    assert summary_text(history(Loss=[1.5, 0.009876, 0.25], Accuracy=[90.0, 98.5, 98.5])) == (
        "======================== Learner Summary ========================\n"
        "Total Epochs: 3\n"
        "\n"
        "\n"
        "| Split | Metric   | Min.     | Epoch    | Max.     | Epoch    |\n"
        "|-------|----------|----------|----------|----------|----------|\n"
        "| Valid | Accuracy | 90.000   | 1        | 98.500   | 3        |\n"
        "| Valid | Loss     | 9.876e-3 | 2        | 1.500    | 1        |\n"
    )


def test_of_equals_the_first_is_lowest_and_the_last_is_highest_and_nan_is_largest():
    row = summary_text(history(Loss=[1.0, 1.0, math.nan])).splitlines()[-1]

    assert [cell.strip() for cell in row.split("|")[3:7]] == ["1.000", "1", "NaN", "3"]
    assert summary_text(history(Loss=[1.0, 1.0])).splitlines()[-1].split("|")[6].strip() == "2"


def test_the_directory_alone_gives_the_table_of_the_live_run(train, tmp_path):
    learner = train(tmp_path, epochs=3)

    assert summary_text(read_history(tmp_path)) == summary_text(learner.history)


def test_logs_of_batches_without_counts_are_read_too(tmp_path):
    """Burn up to 0.12 wrote the value alone."""
    logger = FileMetricLogger(tmp_path / "train")
    logger.log(1, "Loss", 2.0, 1)
    logger.close()
    (tmp_path / "train/epoch-1/Loss.log").write_text("2\n4\n")

    assert read_history(tmp_path).series(Split.TRAIN, "Loss") == {1: 3.0}
