"""The files that `dvc plots` shows, and what happens if one cannot be written."""

import errno
import logging
import os

import pytest

from stages.contracts.confusion import select_cells
from stages.contracts.history import History, Split, Value
from stages.loggers import PlotPaths, write_plots

HISTORY = History([Value(1, Split.VALID, "Loss", 0.5)])


def paths(folder):
    return PlotPaths(folder, folder / "iterations", folder / "confusion.tsv")


@pytest.mark.parametrize("name", ["confusion.tsv", "Loss.tsv", "iterations"])
def test_a_plot_that_cannot_be_written_is_a_warning_and_the_others_are_written(name, tmp_path, caplog):
    expected = {"confusion.tsv", "Loss.tsv", "iterations"} - {name}
    blocked = tmp_path / name
    blocked.mkdir() if name.endswith("tsv") else blocked.touch()

    write_plots(HISTORY, [(0, 1, 2)], tmp_path / "logs", paths(tmp_path))

    assert all((tmp_path / each).exists() for each in expected)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert "The results of the training are not affected" in caplog.text


def test_a_disk_that_accepts_no_file_is_an_error(tmp_path):
    """The caller has not lost anything, and can write complete plots later."""
    (tmp_path / ".Loss.tsv.part").symlink_to("/dev/full")

    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_plots(HISTORY, [], tmp_path / "logs", paths(tmp_path))


def test_a_matrix_of_few_classes_is_written_as_a_whole(tmp_path):
    write_plots(History(), select_cells([(0, 0, 3), (0, 1, 1)], 2), tmp_path, paths(tmp_path))

    assert (tmp_path / "confusion.tsv").read_text() == "actual\tpredicted\tcount\n0\t0\t3\n0\t1\t1\n"


def test_of_many_classes_the_most_confused_pairs_are_written_with_the_samples_of_their_class(tmp_path):
    write_plots(History(), select_cells([(0, 0, 3), (0, 1, 1)], 201), tmp_path, paths(tmp_path))

    rows = (tmp_path / "confusion.tsv").read_text()
    assert rows == "actual\tpredicted\tcount\tclass_samples\n0\t1\t1\t4\n"
