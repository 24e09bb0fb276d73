"""Curves in TensorBoard, read back with TensorBoard's own reader."""

import subprocess
import sys

import pytest

pytest.importorskip("tensorboard", reason="needs the extra tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stages.loggers import TensorBoardMetricLogger


def curves(directory):
    events = EventAccumulator(str(directory))
    events.Reload()
    return {
        name: [(point.step, point.value) for point in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_a_metric_has_a_curve_by_batch_and_one_by_epoch(tmp_path):
    logger = TensorBoardMetricLogger(tmp_path)
    for epoch in (1, 2):
        logger.log(epoch, "Top-K Accuracy", 100.0 * epoch, 3)
        logger.log(epoch, "Top-K Accuracy", 0.0, 1)
        logger.log(epoch, "AUROC", 9.0, 1)
        logger.log_final(epoch, "AUROC", 0.5)
        logger.flush()
    logger.close()

    assert curves(tmp_path) == {
        "Top-K Accuracy": [(1, 100.0), (2, 0.0), (3, 200.0), (4, 0.0)],
        "Top-K Accuracy (epoch)": [(1, 75.0), (2, 150.0)],
        "AUROC": [(1, 9.0), (2, 9.0)],
        "AUROC (epoch)": [(1, 0.5), (2, 0.5)],
    }


def test_a_resumed_run_goes_on_where_the_other_ended(tmp_path):
    logger = TensorBoardMetricLogger(tmp_path, first_step=10)
    logger.log(3, "Loss", 1.0, 1)
    logger.close()

    assert curves(tmp_path) == {"Loss": [(11, 1.0)], "Loss (epoch)": [(3, 1.0)]}


def test_nothing_logged_leaves_nothing(tmp_path):
    logger = TensorBoardMetricLogger(tmp_path / "none")
    logger.flush()
    logger.close()

    assert not (tmp_path / "none").exists()


def test_without_the_package_the_message_says_what_to_install():
    code = "import sys; sys.modules['tensorboard'] = None; from stages.loggers import TensorBoardMetricLogger"

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "pip install 'learner-pipeline[tensorboard]'" in found.stderr


def test_the_other_loggers_need_neither_tensorboard_nor_torch():
    code = (
        "import sys; from stages.loggers import ExperimentLog, FileMetricLogger, read_history;"
        "print(sorted({'torch', 'tensorboard'} & set(sys.modules)))"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
