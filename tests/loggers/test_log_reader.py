"""Reading of log files, in every format that Burn has written."""

import math

import pytest

from stages.contracts.errors import DataError
from stages.contracts.history import Split
from stages.loggers import FileMetricLogger, TestMetricLogger, count_epochs, read_history, read_tests


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2\n4\n", 3.0),
        ("1.0\n2.0", 1.5),
        ("20,64\n100,16\n", 36.0),
        ("0.25,1\n", 0.25),
        ("1,1\n9,1\n0.0629,final\n", 0.0629),
        ("0.5,final\n", 0.5),
        ("N/A\nN/A\n0.75,final\n", 0.75),
        ("N/A,1\n2,1\n", 2.0),
        ("NaN,4\n1,4\n", math.nan),
        ("NaN,0\n1,4\n", 1.0),
        ("inf,4\n1,4\n", math.inf),
        ("-inf,4\n", -math.inf),
        ("NaN,final\n", math.nan),
        ("0.0000001,1\n", 1e-7),
        ("", None),
        ("\n", None),
        ("N/A\n", None),
        ("1,0\n", None),
        ("0.54657024/12.884901888000002 \nUnavailable\n", None),
    ],
)
def test_value_of_an_epoch_is_computed_from_its_lines(text, value, tmp_path):
    write(tmp_path / "valid/epoch-1/Loss.log", text)

    series = read_history(tmp_path).series(Split.VALID, "Loss")

    assert series == ({} if value is None else {1: pytest.approx(value, abs=0, nan_ok=True)})


@pytest.mark.parametrize("line", ["x,2", "1,2,3", "1,", "1,x", "1,-2", "1,inf", ",3"])
def test_error_of_an_unsupported_line_has_its_file_and_number(line, tmp_path):
    write(tmp_path / "valid/epoch-2/Loss.log", f"1,2\n{line}\n")

    with pytest.raises(DataError) as caught:
        read_history(tmp_path)

    assert f"Loss.log, line 2: {line!r} is not 'value', 'value,count' or 'value,final'" in str(caught.value)


def test_logged_values_are_read_back(tmp_path):
    logger = FileMetricLogger(tmp_path / "train")
    for epoch in (1, 2, 10):
        logger.log(epoch, "Top-K Accuracy @ TopK(2)", 10.0 * epoch, 64)
        logger.log(epoch, "Hamming Score @ Threshold(0.5)", 1e-7, 1)
    logger.close()

    history = read_history(tmp_path)

    assert history.series(Split.TRAIN, "Top-K Accuracy @ TopK(2)") == {1: 10.0, 2: 20.0, 10: 100.0}
    assert history.metrics() == ["Hamming Score @ Threshold(0.5)", "Top-K Accuracy @ TopK(2)"]
    assert history.epochs == 10


@pytest.mark.parametrize(
    ("file", "metric"),
    [
        ("Learning_Rate.log", "Learning Rate"),
        ("Learning Rate.log", "Learning Rate"),  # Burn 0.9 kept spaces
        ("PSNR@255.log", "PSNR@255"),
        ("my_f1.log", "my f1"),  # an underscore of the name is lost
    ],
)
def test_metric_is_read_from_the_file_name(file, metric, tmp_path):
    write(tmp_path / "train/epoch-1" / file, "1,1\n")

    assert read_history(tmp_path).metrics() == [metric]


def test_telemetry_is_read_in_the_same_way(tmp_path):
    write(tmp_path / "telemetry/train/epoch-1/Iteration_Speed.log", "0,1\n10,1\n")

    assert not len(read_history(tmp_path))
    assert read_history(tmp_path / "telemetry").series(Split.TRAIN, "Iteration Speed") == {1: 5.0}


def test_number_of_epochs_is_that_of_the_highest_folder_even_if_empty(tmp_path):
    write(tmp_path / "train/epoch-9/Loss.log", "1,1\n")
    write(tmp_path / "train/epoch-10/Loss.log", "")
    write(tmp_path / "train/epoch-x/Loss.log", "1,1\n")

    assert count_epochs(tmp_path) == 10
    assert read_history(tmp_path).epochs == 9


def test_missing_directory_has_no_history_and_no_tests(tmp_path):
    assert not len(read_history(tmp_path / "none"))
    assert count_epochs(tmp_path / "none") == 0
    assert read_tests(tmp_path / "none") == {}


def test_evaluations_are_read_by_tag(tmp_path):
    logger = TestMetricLogger(tmp_path / "test/mnist-c")
    logger.log(1, "Accuracy", 90.0, 3)
    logger.log(1, "Accuracy", 50.0, 1)
    logger.close()
    write(tmp_path / "test/Loss.log", "0.5,1\n")
    write(tmp_path / "test/a/epoch-1/Loss.log", "1,1\n")
    write(tmp_path / "test/a/epoch-2/Loss.log", "2,1\n")
    write(tmp_path / "test/nothing/Loss.log", "")

    found = read_tests(tmp_path)

    assert found == {"": {"Loss": 0.5}, "a": {"Loss": 2.0}, "mnist-c": {"Accuracy": 80.0}}
    assert list(found) == ["", "a", "mnist-c"]


def test_error_of_an_unreadable_file_has_its_path(tmp_path):
    (tmp_path / "train/epoch-1/Loss.log").mkdir(parents=True)

    with pytest.raises(DataError, match=r"Loss.log cannot be read: Is a directory"):
        read_history(tmp_path)
