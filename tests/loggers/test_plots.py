"""The files that `dvc metrics` and `dvc plots` read."""

import errno
import json
import math
import os

import pytest

from stages.contracts.errors import BuilderError, ParamsError
from stages.contracts.history import History, Split, Value
from stages.loggers import FileMetricLogger, PlotPaths, write_curves, write_metrics, write_plots
from stages.loggers.plots import is_kept
from stages.metrics.classification import select_cells

HISTORY = History([Value(1, Split.VALID, "Loss", 0.5)])


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


def paths(folder):
    return PlotPaths(folder, folder / "iterations", folder / "confusion.tsv")


def write_run(folder, *epochs):
    """Write a run with the losses *epochs*, lists of batches, and return its TSV with a row per batch."""
    logger = FileMetricLogger(folder / "train")
    for epoch, values in enumerate(epochs, start=1):
        for value in values:
            logger.log(epoch, "Top-2 Accuracy", value, 32)
        logger.log_final(epoch, "Top-2 Accuracy", 9.0)
    logger.close()
    write_plots(History(), [], folder, paths(folder / "plots"))
    return (folder / "plots/iterations/train/Top-2_Accuracy.tsv").read_text()


def test_metrics_are_those_of_the_last_and_of_the_best_epoch(values, tmp_path):
    write_metrics(values, tmp_path / "metrics.json")

    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        "epoch": 2,
        "train": {"Loss": 1.0},
        "valid": {"Loss": 2.5},
        "best": {"epoch": 1, "train": {"Loss": 3.0}, "valid": {"Loss": 2.0}},
    }


def test_curve_has_the_values_of_all_names_with_its_file(tmp_path):
    names = [(1, Split.TRAIN, "a b"), (1, Split.VALID, "a_b"), (2, Split.TRAIN, "a_b")]
    history = History([Value(*name, number) for number, name in enumerate(names)])

    write_curves(history, tmp_path)

    assert (tmp_path / "a_b.tsv").read_text() == "epoch\ttrain\tvalid\n1\t0\t1\n2\t2\t\n"


def test_nan_among_the_metrics_is_valid_json(tmp_path):
    write_metrics(History([Value(1, Split.TRAIN, "Loss", math.nan)]), tmp_path / "metrics.json")

    content = json.loads((tmp_path / "metrics.json").read_text(), parse_constant=pytest.fail)
    assert content["train"] == {"Loss": "NaN"}


def test_curve_has_a_row_per_epoch_and_a_column_per_split(values, tmp_path):
    write_curves(values, tmp_path)

    assert (tmp_path / "Loss.tsv").read_text() == "epoch\ttrain\tvalid\n1\t3\t2\n2\t1\t2.5\n"


def test_curve_outside_its_folder_is_rejected(tmp_path):
    with pytest.raises(BuilderError, match="cannot be the name of a file"):
        write_curves(History([Value(1, Split.TRAIN, "../Loss", 1.0)]), tmp_path / "plots")


def test_steps_count_through_all_epochs_and_epoch_values_have_no_row(tmp_path):
    text = write_run(tmp_path, [0.5, 1e-7], [float("nan"), 2.0])

    assert text == "step\tepoch\tvalue\n0\t1\t0.5\n1\t1\t0.0000001\n2\t2\tNaN\n3\t2\t2\n"


def test_text_has_no_row_and_counts_as_a_step(tmp_path):
    log = tmp_path / "train/epoch-1/Loss.log"
    log.parent.mkdir(parents=True)
    log.write_text("0.5,32\nN/A\nwords\n0.25\n")

    write_plots(History(), [], tmp_path, paths(tmp_path / "plots"))

    rows = (tmp_path / "plots/iterations/train/Loss.tsv").read_text().splitlines()[1:]
    assert rows == ["0\t1\t0.5", "3\t1\t0.25"]


def test_long_run_keeps_fewer_later_steps_and_begins_like_a_shorter_run(tmp_path):
    short = write_run(tmp_path / "short", [float(step) for step in range(1500)])
    long = write_run(tmp_path / "long", [float(step) for step in range(1000)], [1.0] * 4000)

    steps = [int(row.split("\t")[0]) for row in long.splitlines()[1:]]
    assert steps == [*range(1024), *range(1024, 2048, 2), *range(2048, 4096, 4), *range(4096, 5000, 8)]
    assert [int(row.split("\t")[0]) for row in short.splitlines()[1:]] == [s for s in steps if s < 1500]
    assert sum(map(is_kept, range(10**6))) < 6200


def test_plots_outside_their_output_are_rejected(tmp_path):
    apart = PlotPaths(tmp_path / "plots", tmp_path / "iterations", tmp_path / "plots/confusion.tsv")

    with pytest.raises(ParamsError, match="paths.iterations must be below paths.plots.*found .*iterations"):
        apart.relocate(tmp_path)


@pytest.mark.parametrize("name", ["confusion.tsv", "Loss.tsv", "iterations", "logs/train/epoch-1/Loss.log"])
def test_plot_that_cannot_be_written_or_read_is_an_error(name, tmp_path):
    """DVC would otherwise record the plots without it; the caller can write all of them later."""
    logger = FileMetricLogger(tmp_path / "logs/train")
    logger.log(1, "Loss", 0.5, 32)
    logger.close()
    blocked = tmp_path / name
    blocked.unlink(missing_ok=True)
    blocked.touch() if name == "iterations" else blocked.mkdir()

    with pytest.raises(OSError, match=blocked.name):
        write_plots(HISTORY, [(0, 1, 2)], tmp_path / "logs", paths(tmp_path))


def test_disk_that_accepts_no_file_is_an_error(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)

    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_plots(HISTORY, [], tmp_path / "logs", paths(tmp_path))


def test_matrix_of_few_classes_is_written_completely(tmp_path):
    write_plots(History(), select_cells([(0, 0, 3), (0, 1, 1)], 2), tmp_path, paths(tmp_path))

    assert (tmp_path / "confusion.tsv").read_text() == "actual\tpredicted\tcount\n0\t0\t3\n0\t1\t1\n"


def test_matrix_of_many_classes_has_the_most_confused_pairs_with_the_samples_of_their_class(tmp_path):
    write_plots(History(), select_cells([(0, 0, 3), (0, 1, 1)], 201), tmp_path, paths(tmp_path))

    rows = (tmp_path / "confusion.tsv").read_text()
    assert rows == "actual\tpredicted\tcount\tclass_samples\n0\t1\t1\t4\n"
