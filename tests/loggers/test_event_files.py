"""Curves in TensorBoard, read with TensorBoard's own reader."""

import numpy as np
import pytest

pytest.importorskip("tensorboard", reason="needs the extra tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stages.contracts.step_log import LoggedSample
from stages.loggers import TensorBoardMetricLogger


def curves(directory):
    events = EventAccumulator(str(directory))
    events.Reload()
    return {
        name: [(point.step, point.value) for point in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_metric_has_a_curve_by_batch_and_one_by_epoch(tmp_path):
    logger = TensorBoardMetricLogger(tmp_path)
    for epoch in (1, 2):
        logger.begin_batch(epoch, 1)
        logger.log(epoch, "Top-K Accuracy", 100.0 * epoch, 3)
        logger.begin_batch(epoch, 2)
        logger.log(epoch, "Top-K Accuracy", 0.0, 1)
        logger.log(epoch, "AUROC", 9.0, 1)
        logger.log_final(epoch, "AUROC", 0.5)
        logger.flush()
    logger.close()

    assert curves(tmp_path) == {
        "Top-K Accuracy": [(1, 100.0), (2, 0.0), (3, 200.0), (4, 0.0)],
        "Top-K Accuracy (epoch)": [(1, 75.0), (2, 150.0)],
        "AUROC": [(2, 9.0), (4, 9.0)],
        "AUROC (epoch)": [(1, 0.5), (2, 0.5)],
    }


def test_first_step_continues_the_curve_of_another_directory(tmp_path):
    logger = TensorBoardMetricLogger(tmp_path, first_step=10)
    logger.begin_batch(3, 1)
    logger.log(3, "Loss", 1.0, 1)
    logger.close()

    assert curves(tmp_path) == {"Loss": [(11, 1.0)], "Loss (epoch)": [(3, 1.0)]}


def test_logger_without_a_call_writes_no_directory(tmp_path):
    logger = TensorBoardMetricLogger(tmp_path / "none")
    logger.flush()
    logger.close()

    assert not (tmp_path / "none").exists()


def log_steps(logger, steps):
    """Log loss and AUROC of *steps*, counted from 1, with four steps per epoch."""
    for step in steps:
        epoch = (step - 1) // 4 + 1
        logger.begin_batch(epoch, (step - 1) % 4 + 1)
        logger.log(epoch, "Loss", float(step), 2)
        logger.log(epoch, "AUROC", 0.0, 2)
        if step % 4 == 0:
            logger.log_final(epoch, "AUROC", float(epoch))


@pytest.mark.parametrize(("saved", "later"), [(1, 0), (3, 1), (4, 0), (6, 2), (8, 0), (11, 1)])
def test_resumed_run_has_the_curves_of_an_uninterrupted_run(saved, later, tmp_path):
    """The run was interrupted, or killed some steps after the checkpoint within the epoch."""
    uninterrupted = TensorBoardMetricLogger(tmp_path / "uninterrupted")
    log_steps(uninterrupted, range(1, 13))
    uninterrupted.close()

    first = TensorBoardMetricLogger(tmp_path / "resumed")
    log_steps(first, range(1, saved + 1))
    position = first.position()
    if not later:
        first.close()
    else:
        log_steps(first, range(saved + 1, saved + later + 1))
        first.position()  # as after a kill, no point of the epoch is written
        first.close()
    resumed = TensorBoardMetricLogger(tmp_path / "resumed")
    resumed.resume((saved - 1) // 4 + 1, position)
    log_steps(resumed, range(saved + 1, 13))
    resumed.close()

    assert curves(tmp_path / "resumed") == curves(tmp_path / "uninterrupted")


def test_run_from_the_start_hides_the_curves_of_an_earlier_run(tmp_path):
    for first in (1, 2):
        logger = TensorBoardMetricLogger(tmp_path)
        logger.cut(0)
        log_steps(logger, range(1, 4 * first + 1))
        logger.close()

    assert curves(tmp_path)["Loss"] == [(step, float(step)) for step in range(1, 9)]
    assert curves(tmp_path)["Loss (epoch)"] == [(1, 2.5), (2, 6.5)]


def test_repeated_epoch_has_each_batch_once(tmp_path):
    logger = TensorBoardMetricLogger(tmp_path)
    log_steps(logger, range(1, 7))
    logger.cut(1)
    log_steps(logger, range(5, 9))
    logger.close()

    assert [step for step, _ in curves(tmp_path)["Loss"]] == list(range(1, 9))


def test_last_epoch_has_its_point_after_its_position_was_read(tmp_path):
    logger = TensorBoardMetricLogger(tmp_path)
    log_steps(logger, range(1, 5))
    logger.position()
    logger.flush()  # as the loop does at the end of an epoch
    logger.close()

    assert curves(tmp_path)["Loss (epoch)"] == [(1, 2.5)]


def test_run_resumed_after_an_epoch_continues_the_curves(tmp_path):
    before = TensorBoardMetricLogger(tmp_path)
    for epoch, batch, value in ((1, 1, 1.0), (1, 2, 0.5), (2, 1, 9.0)):
        before.begin_batch(epoch, batch)
        before.log(epoch, "Loss", value, 1)
    before.close()

    resumed = TensorBoardMetricLogger(tmp_path)
    resumed.cut(1)
    resumed.begin_batch(2, 1)
    resumed.log(2, "Loss", 0.25, 1)
    resumed.close()

    assert curves(tmp_path)["Loss"] == [(1, 1.0), (2, 0.5), (3, 0.25)]


@pytest.mark.parametrize("later", [0, 2])
def test_run_killed_after_an_epoch_continues_the_curves(later, tmp_path):
    """A split has no later batches if the run is killed before its pass of the next epoch."""
    killed = TensorBoardMetricLogger(tmp_path)
    log_steps(killed, range(1, 5))
    killed.flush()  # as the loop does at the end of an epoch
    log_steps(killed, range(5, 5 + later))

    resumed = TensorBoardMetricLogger(tmp_path)
    resumed.cut(1)
    log_steps(resumed, range(5, 9))
    resumed.close()

    assert curves(tmp_path)["Loss"] == [(step, float(step)) for step in range(1, 9)]
    assert curves(tmp_path)["Loss (epoch)"] == [(1, 2.5), (2, 6.5)]


def test_run_resumed_after_an_epoch_without_validation_continues_the_curves(tmp_path):
    for logged in ((2, 4), (6,)):
        logger = TensorBoardMetricLogger(tmp_path)
        logger.cut(logged[0] - 1)
        for epoch in logged:
            logger.begin_batch(epoch, 1)
            logger.log(epoch, "Loss", float(epoch), 1)
        logger.close()

    assert curves(tmp_path)["Loss"] == [(1, 2.0), (2, 4.0), (3, 6.0)]


def test_samples_are_images_and_texts_of_an_epoch(tmp_path):
    logger = TensorBoardMetricLogger(tmp_path)
    for number, content in enumerate((np.zeros((2, 3), np.uint8), np.zeros((2, 3, 3), np.uint8), "said"), 1):
        logger.log_sample(4, LoggedSample("sample", number, content))
    logger.close()

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    images = [events.Images(f"sample/{number}")[0] for number in (1, 2)]
    assert [(image.step, image.width, image.height) for image in images] == [(4, 3, 2)] * 2
    assert b"said" in events.Tensors("sample/3/text_summary")[0].tensor_proto.string_val
