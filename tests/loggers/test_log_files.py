"""Burn's log files."""

import pytest

from stages.contracts.errors import BuilderError
from stages.loggers import FileMetricLogger, TestMetricLogger, count_epochs, read_history


def test_file_has_a_line_per_batch_and_underscores_for_spaces(tmp_path):
    logger = FileMetricLogger(tmp_path)
    logger.log(1, "Top-K Accuracy @ TopK(2)", 20.3125, 64)
    logger.log(1, "Top-K Accuracy @ TopK(2)", 1e-7, 4)
    logger.close()

    assert (tmp_path / "epoch-1/Top-K_Accuracy_@_TopK(2).log").read_bytes() == b"20.3125,64\n0.0000001,4\n"


def test_metric_that_is_not_a_mean_of_its_batches_has_a_final_line(tmp_path):
    logger = FileMetricLogger(tmp_path)
    logger.log(1, "Perplexity", 3.0, 1)
    logger.log_final(1, "Perplexity", 2.5)
    logger.close()

    assert (tmp_path / "epoch-1/Perplexity.log").read_text() == "3,1\n2.5,final\n"


def test_each_epoch_and_metric_has_a_file(tmp_path):
    logger = FileMetricLogger(tmp_path)
    for epoch in (1, 2):
        for name in ("Loss", "Accuracy"):
            logger.log(epoch, name, float(epoch), 1)
    logger.close()

    found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.log")}
    assert found == {f"epoch-{e}/{name}.log": f"{e},1\n" for e in (1, 2) for name in ("Loss", "Accuracy")}


def test_logs_of_a_test_set_have_no_epochs(tmp_path):
    logger = TestMetricLogger(tmp_path / "test/mnist")
    logger.log(1, "Loss", 0.5, 8)
    logger.close()

    assert (tmp_path / "test/mnist/Loss.log").read_text() == "0.5,8\n"


def test_lines_are_buffered_until_they_are_flushed(tmp_path):
    logger = FileMetricLogger(tmp_path, flush_seconds=60)
    logger.log(1, "Loss", 1.0, 1)
    buffered = (tmp_path / "epoch-1/Loss.log").read_text()
    logger.flush()
    flushed = (tmp_path / "epoch-1/Loss.log").read_text()
    logger.close()

    assert (buffered, flushed) == ("", "1,1\n")


def test_due_lines_are_written_by_the_next_call(tmp_path):
    logger = FileMetricLogger(tmp_path, flush_seconds=0)
    logger.log(1, "Loss", 1.0, 1)
    written = (tmp_path / "epoch-1/Loss.log").read_text()
    logger.close()

    assert written == "1,1\n"


def test_end_of_an_epoch_writes_the_buffered_lines(tmp_path):
    logger = FileMetricLogger(tmp_path, flush_seconds=60)
    logger.log(1, "Loss", 1.0, 1)
    logger.log(2, "Loss", 2.0, 1)
    first = (tmp_path / "epoch-1/Loss.log").read_text()
    logger.close()

    assert first == "1,1\n"


def test_repeated_epoch_starts_a_new_file(tmp_path):
    for value in (1.0, 2.0):
        logger = FileMetricLogger(tmp_path)
        logger.log(1, "Loss", value, 1)
        logger.close()

    assert (tmp_path / "epoch-1/Loss.log").read_text() == "2,1\n"


def test_resumed_run_keeps_the_files_of_earlier_epochs(tmp_path):
    """Burn up to 0.21 wrote the first resumed epoch to the files of epoch 1."""
    for epoch in (1, 2):
        logger = FileMetricLogger(tmp_path)
        logger.log(epoch, "Loss", float(epoch), 1)
        logger.close()

    assert (tmp_path / "epoch-1/Loss.log").read_text() == "1,1\n"
    assert (tmp_path / "epoch-2/Loss.log").read_text() == "2,1\n"


def test_shorter_run_removes_the_epochs_of_a_longer_one(tmp_path):
    for value, epochs in ((1.0, 6), (2.0, 3)):
        logger = FileMetricLogger(tmp_path / "train")
        for epoch in range(1, epochs + 1):
            logger.log(epoch, "Loss", value, 1)
        logger.close()

    values = {value.epoch: value.value for value in read_history(tmp_path)}
    assert values == {1: 2.0, 2: 2.0, 3: 2.0}
    assert count_epochs(tmp_path) == 3


def test_only_folders_of_later_epochs_are_removed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    train = tmp_path / "train"
    for name in ("epoch-1", "epoch-3", "epoch-4-notes", "my-epoch-4"):
        (train / name).mkdir(parents=True)
    (train / "epoch-5").write_text("a file")
    (train / "epoch-6").symlink_to(elsewhere)
    logger = FileMetricLogger(train)
    logger.log(2, "Loss", 1.0, 1)
    logger.close()

    found = {path.name for path in train.iterdir()}
    assert found == {"epoch-1", "epoch-2", "epoch-4-notes", "my-epoch-4", "epoch-5", "epoch-6"}


def test_logger_of_a_test_set_removes_no_epochs(tmp_path):
    (tmp_path / "epoch-9").mkdir()
    logger = TestMetricLogger(tmp_path)
    logger.log(1, "Loss", 1.0, 1)
    logger.close()

    assert (tmp_path / "epoch-9").is_dir()


@pytest.mark.parametrize("name", ["../../Loss", "a/b", "a\\b", "..", "a\0b", "a\nb", "a\tb", ""])
def test_name_that_cannot_be_a_file_name_is_rejected(name, tmp_path):
    logger = FileMetricLogger(tmp_path / "train")

    with pytest.raises(BuilderError, match="cannot be the name of a file"):
        logger.log(1, name, 1.0, 1)

    assert not list(tmp_path.iterdir())


def test_second_metric_with_the_same_file_is_rejected(tmp_path):
    logger = FileMetricLogger(tmp_path)
    logger.log(1, "My Loss", 1.0, 1)

    with pytest.raises(BuilderError, match="'My Loss' and 'My_Loss' would share .*My_Loss.log"):
        logger.log(1, "My_Loss", 1.0, 1)

    logger.close()
