"""The curves of every batch, from the logs."""

import pytest

from stages.contracts.errors import ParamsError
from stages.contracts.history import History
from stages.loggers import FileMetricLogger, PlotPaths, write_plots
from stages.loggers.iterations import is_kept


def paths(folder):
    return PlotPaths(folder, folder / "iterations", folder / "confusion.tsv")


def written(folder, *epochs):
    """The TSV of a run whose loss was *epochs*, a list of batches each."""
    logger = FileMetricLogger(folder / "train")
    for epoch, values in enumerate(epochs, start=1):
        for value in values:
            logger.log(epoch, "Top-2 Accuracy", value, 32)
        logger.log_final(epoch, "Top-2 Accuracy", 9.0)
    logger.close()
    write_plots(History(), [], folder, paths(folder / "plots"))
    return (folder / "plots/iterations/train/Top-2_Accuracy.tsv").read_text()


def test_steps_count_through_all_epochs_and_an_epochs_own_value_has_no_row(tmp_path):
    text = written(tmp_path, [0.5, 1e-7], [float("nan"), 2.0])

    assert text == "step\tepoch\tvalue\n0\t1\t0.5\n1\t1\t0.0000001\n2\t2\tNaN\n3\t2\t2\n"


def test_what_is_no_number_has_no_row_and_counts_all_the_same(tmp_path):
    log = tmp_path / "train/epoch-1/Loss.log"
    log.parent.mkdir(parents=True)
    log.write_text("0.5,32\nN/A\nwords\n0.25\n")

    write_plots(History(), [], tmp_path, paths(tmp_path / "plots"))

    rows = (tmp_path / "plots/iterations/train/Loss.tsv").read_text().splitlines()[1:]
    assert rows == ["0\t1\t0.5", "3\t1\t0.25"]


def test_a_long_run_keeps_fewer_and_fewer_steps_and_begins_like_a_shorter_one(tmp_path):
    short = written(tmp_path / "short", [float(step) for step in range(1500)])
    long = written(tmp_path / "long", [float(step) for step in range(1000)], [1.0] * 4000)

    steps = [int(row.split("\t")[0]) for row in long.splitlines()[1:]]
    assert steps == [*range(1024), *range(1024, 2048, 2), *range(2048, 4096, 4), *range(4096, 5000, 8)]
    assert [int(row.split("\t")[0]) for row in short.splitlines()[1:]] == [s for s in steps if s < 1500]
    assert sum(map(is_kept, range(10**6))) < 6200


def test_plots_that_would_be_no_part_of_their_output_are_refused(tmp_path):
    apart = PlotPaths(tmp_path / "plots", tmp_path / "iterations", tmp_path / "plots/confusion.tsv")

    with pytest.raises(ParamsError, match="paths.iterations is .*does not lie in paths.plots"):
        apart.moved(tmp_path)
